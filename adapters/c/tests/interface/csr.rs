//! Pages in the CSR form, as a table of pages and lengths: on the CPU and an emulated GPU.

use crate::arrays::{Memory, on_devices};
use crate::{Cpu, last_error};
use ferroattn_c::csr::{FerroattnCsrPages, ferroattn_csr_pages, ferroattn_plan_csr_pages};
use ferroattn_c::plan::{ferroattn_plan_free, ferroattn_plan_kernel};
use ferroattn_c::status::FerroattnStatus;
use proptest::prelude::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const OK: FerroattnStatus = FerroattnStatus::Ok;
const ARGUMENT: FerroattnStatus = FerroattnStatus::Argument;

/// A number that nobody wrote.
const STALE: i32 = -77;

/// The pages of each entry, and the keys of its last one.
#[derive(Clone, Debug)]
struct Case {
    page: usize,
    entries: Vec<(Vec<i32>, i32)>,
    /// Numbers that the table has room for beyond the longest entry.
    beyond: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let entry = |page: usize| (proptest::collection::vec(0..1000, 0..7), 1..=page as i32);
    let entries = (0..6_u32).prop_flat_map(move |log2| {
        let page = 1 << log2;
        (
            Just(page),
            proptest::collection::vec(entry(page), 1..6),
            0..3_usize,
        )
    });
    entries.prop_map(|(page, entries, beyond)| Case {
        page,
        entries,
        beyond,
    })
}

impl Case {
    fn most(&self) -> usize {
        let longest = self.entries.iter().map(|(pages, _)| pages.len()).max();
        longest.expect("an entry") + self.beyond
    }

    fn args(&self, memory: Memory) -> FerroattnCsrPages {
        let mut indptr = vec![0];
        for (pages, _) in &self.entries {
            indptr.push(indptr.last().expect("the first one") + pages.len() as i32);
        }
        let mut indices: Vec<i32> = self
            .entries
            .iter()
            .flat_map(|(pages, _)| pages.clone())
            .collect();
        // More than are used.
        indices.push(STALE);
        let last: Vec<i32> = self.entries.iter().map(|(_, last)| *last).collect();
        let (batch, most) = (self.entries.len(), self.most());
        FerroattnCsrPages {
            struct_size: size_of::<FerroattnCsrPages>() as u32,
            check_lengths: 1,
            page: self.page as u64,
            indptr: memory.array(&indptr, [batch + 1]),
            indices: memory.array(&indices, [indices.len()]),
            last_page: memory.array(&last, [batch]),
            // Behind the last number lies one that is not the table's.
            table: {
                let mut table = memory.array(&vec![STALE; batch * most + 1], [batch * most + 1]);
                (table.shape[0], table.shape[1]) = (batch as i64, most as i64);
                (table.strides[0], table.strides[1]) = (most as i64, 1);
                table
            },
            lengths: memory.array(&vec![STALE; batch + 1], [batch + 1]),
        }
    }

    fn check(&self, memory: Memory) {
        let mut args = self.args(memory);
        args.lengths.shape[0] = self.entries.len() as i64;
        assert_eq!(run(memory, &args), OK, "{}", last_error());
        let most = self.most();
        let (mut table, mut lengths) = (Vec::new(), Vec::new());
        for (pages, last) in &self.entries {
            let behind = vec![STALE; most - pages.len()];
            table.extend(pages.iter().copied().chain(behind));
            lengths.push(match pages.len() {
                0 => 0,
                pages => ((pages - 1) * self.page) as i32 + last,
            });
        }
        for (tensor, mut expected) in [(&args.table, table), (&args.lengths, lengths)] {
            expected.push(STALE);
            assert_eq!(memory.numbers::<i32>(tensor, expected.len()), expected);
        }
    }
}

fn run(memory: Memory, args: &FerroattnCsrPages) -> FerroattnStatus {
    // SAFETY: the device is open, the struct lives, and the tensors are the device's memory, of this call alone.
    unsafe { ferroattn_csr_pages(memory.0, args, null_mut()) }
}

proptest! {
    // Failing cases are printed whole: no file of seeds is needed.
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_have_all_pages(case in cases()) {
        on_devices(|memory| case.check(memory));
    }
}

fn case() -> Case {
    Case {
        page: 4,
        entries: vec![(vec![2, 0], 3), (vec![], 9), (vec![1], 1)],
        beyond: 0,
    }
}

#[test]
fn plans_name_their_kernels() {
    on_devices(|memory| {
        let (mut args, mut plan) = (case().args(memory), null_mut());
        args.lengths.shape[0] = 3;
        args.table.address = 0;
        // SAFETY: a plan uses no memory of tensors, and is freed last.
        unsafe {
            let made = ferroattn_plan_csr_pages(memory.0, &args, &mut plan);
            assert_eq!(made, OK, "{}", last_error());
            let kernel = CStr::from_ptr(ferroattn_plan_kernel(plan));
            assert!([c"cpu", c"csr"].contains(&kernel), "{kernel:?}");
            ferroattn_plan_free(plan);
        }
    });
}

#[test]
fn wrong_calls_are_refused() {
    let refused = |reason: &str, spoil: &dyn Fn(Memory, &mut FerroattnCsrPages)| {
        on_devices(|memory| {
            let mut args = case().args(memory);
            args.lengths.shape[0] = 3;
            spoil(memory, &mut args);
            assert_eq!(run(memory, &args), ARGUMENT, "{reason}");
            assert!(last_error().contains(reason), "{}", last_error());
            assert_eq!(memory.numbers::<i32>(&args.lengths, 4), [STALE; 4]);
        });
    };
    refused("struct_size of args is 8; FerroattnCsrPages", &|_, args| {
        args.struct_size = 8
    });
    refused("check_lengths is 2; it must be 0 or 1", &|_, args| {
        args.check_lengths = 2
    });
    refused(
        "a page has 3 keys; it must have a power of 2",
        &|_, args| args.page = 3,
    );
    refused("the address of table is 0", &|_, args| {
        args.table.address = 0
    });
    refused("indptr has shape [3]", &|_, args| args.indptr.shape[0] = 3);
    refused(
        "last_page[0] is 5; it must be from 1 to 4",
        &|memory, args| args.last_page = memory.array(&[5, 1, 1], [3]),
    );
    refused("indptr[2] is 1", &|memory, args| {
        args.indptr = memory.array(&[0, 2, 1, 3], [4])
    });
}

#[test]
fn null_is_refused() {
    let cpu = Cpu::open();
    let (args, mut plan) = (case().args(Memory(cpu.0)), null_mut());
    // SAFETY: each call is refused for a pointer that is null.
    let all = unsafe {
        [
            (
                "device",
                ferroattn_csr_pages(null(), &args, null_mut()),
                last_error(),
            ),
            (
                "args",
                ferroattn_csr_pages(cpu.0, null(), null_mut()),
                last_error(),
            ),
            (
                "device",
                ferroattn_plan_csr_pages(null(), &args, &mut plan),
                last_error(),
            ),
            (
                "plan",
                ferroattn_plan_csr_pages(cpu.0, &args, null_mut()),
                last_error(),
            ),
        ]
    };
    for (name, status, error) in all {
        assert_eq!((status, error), (ARGUMENT, format!("{name} is NULL")));
    }
}
