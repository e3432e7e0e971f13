//! Pages in the CSR form, as tables and lengths.

use ferroattn::{Attention, CsrPages, Device, Error, Result, Tensor, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tests::strategy::{check_each, few};
use tests::{Guarded, Outcome, PASSED, Test};

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("any", |device| {
            let count = if device.is_emulator() { 40 } else { 100 };
            check_each(few(device, count), cases(), |case| case.check(device))
        }),
        Test::kernels("any_numbers", any_numbers),
        Test::new("attention", attention),
        Test::new("wrong_numbers", wrong_numbers),
        Test::new("wrong_shapes", wrong_shapes),
    ];
    Test::and_on_hopper(tests)
}

/// Pages of a batch.
#[derive(Clone, Debug)]
struct CsrCase {
    /// Keys of a page, as the exponent of a power of 2.
    page_log2: u32,
    /// How many pages each entry has.
    counts: Vec<usize>,
    /// Pages that a row of the table has room for beyond the longest entry's, and numbers between rows.
    beyond: [usize; 2],
    /// Numbers before the first entry's.
    before: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = CsrCase> {
    let counts = prop_oneof![2 => Just(0), 4 => 1..9_usize, 2 => 100..400_usize];
    let counts = proptest::collection::vec(counts, 0..8);
    let sizes = (0..9_u32, counts, [0..200_usize, 0..5_usize], 0..4_usize);
    (sizes, any::<u64>()).prop_map(|((page_log2, counts, beyond, before), seed)| CsrCase {
        page_log2,
        counts,
        beyond,
        before,
        seed,
    })
}

/// Numbers `i32` in guarded memory.
fn numbers(numbers: &[i32]) -> Guarded<i32, 1> {
    // Guards want an element.
    let mut guarded = Guarded::poisoned([numbers.len()], [1], 0);
    guarded.fill(numbers.iter().copied());
    guarded
}

impl CsrCase {
    /// Writes the table, and checks each number, and that nothing else was written.
    fn check(&self, device: &Device) -> Outcome {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (page, batch) = (1 << self.page_log2, self.counts.len());
        let mut indptr = vec![self.before as i32];
        for count in &self.counts {
            indptr.push(indptr[indptr.len() - 1] + *count as i32);
        }
        // Some numbers are of no entry.
        let mut indices: Vec<i32> = (0..indptr[batch] + 3).collect();
        indices.shuffle(&mut rng);
        let last_page: Vec<i32> = { self.counts.iter() }
            .map(|&count| match count {
                0 => rng.random(),
                _ => rng.random_range(1..=page),
            })
            .collect();
        let most = self.counts.iter().max().unwrap_or(&0) + self.beyond[0];
        if batch == 0 || most == 0 {
            return self.check_without_rows(device, most);
        }
        let inputs = [&indptr, &indices, &last_page].map(|input| numbers(input));
        let stride = (most + self.beyond[1]) as isize;
        let mut table = Guarded::<i32, 2>::poisoned([batch, most], [stride, 1], 0);
        let mut lengths = Guarded::<i32, 1>::poisoned([batch], [1], 0);
        let (mut to, mut to_lengths) = (table.upload(device)?, lengths.upload(device)?);
        let [a, b, c] = inputs.each_ref().map(|input| input.upload(device));
        let (a, b, c) = (a?, b?, c?);
        CsrPages::new(page as usize, &a, &b, &c).run(&mut to, &mut to_lengths)?;
        for (input, after) in inputs.iter().zip([a, b, c]) {
            if !input.is_unchanged(after)? {
                return Err("an input was overwritten".into());
            }
        }
        table.download(to)?;
        lengths.download(to_lengths)?;
        if let Some(place) = table.overrun().or(lengths.overrun()) {
            return Err(format!("written outside an output, {place} from its first").into());
        }
        let (rows, lengths): (Vec<_>, Vec<_>) =
            (table.elements().collect(), lengths.elements().collect());
        for (entry, &count) in self.counts.iter().enumerate() {
            let keys = match count {
                0 => 0,
                _ => (count as i32 - 1) * page + last_page[entry],
            };
            let first = indptr[entry] as usize;
            let mut expected = indices[first..first + count].to_vec();
            expected.resize(most, -1);
            if lengths[entry] != keys {
                return Err(format!("entry {entry} has {} keys for {keys}", lengths[entry]).into());
            }
            let mut row = rows[entry * most..].iter().zip(&expected);
            if let Some(page) = row.position(|(found, expected)| found != expected) {
                return Err(format!("page {page} of entry {entry} is another one").into());
            }
        }
        PASSED
    }

    /// Without entries, or without pages of any: lengths of 0.
    fn check_without_rows(&self, device: &Device, most: usize) -> Outcome {
        let batch = self.counts.len();
        let zeros = |count| Tensor::<i32, 1>::zeros(device, [count]);
        let mut table = Tensor::<i32, 2>::zeros(device, [batch, most])?;
        let mut lengths = Tensor::new(device, [batch], &vec![7; batch])?;
        let call = (zeros(batch + 1)?, zeros(0)?, zeros(batch)?);
        CsrPages::new(8, &call.0, &call.1, &call.2).run(&mut table, &mut lengths)?;
        assert_eq!(lengths.to_vec()?, vec![0; batch]);
        PASSED
    }
}

/// Offsets and last pages of any numbers, of which the nearest ones that are allowed count; rows have room for three pages of
/// eight keys, of four that there are.
fn any_numbers(device: &Device) -> Outcome {
    const MIN: i32 = i32::MIN;
    const MAX: i32 = i32::MAX;
    let calls = [
        ([0, 3, 4], [MIN, MAX], [(0..3, 17), (3..4, 8)]),
        ([MIN, 2, MAX], [0, 9], [(0..2, 9), (2..4, 16)]),
        // They fall.
        ([3, 1, MIN], [5, 5], [(3..3, 0), (1..1, 0)]),
        ([MAX, MIN, 1], [5, 5], [(4..4, 0), (0..1, 5)]),
        ([5, 4, MAX], [5, 5], [(4..4, 0), (4..4, 0)]),
        // More than there is room for.
        ([0, 4, 4], [5, 5], [(0..3, 24), (4..4, 0)]),
        ([-1, MAX, 3], [5, -5], [(0..3, 24), (4..4, 0)]),
    ];
    for (indptr, last_page, expected) in calls {
        let inputs = [&indptr[..], &[40, 30, 20, 10], &last_page].map(numbers);
        let [a, b, c] = inputs.each_ref().map(|input| input.upload(device));
        let (a, b, c) = (a?, b?, c?);
        let mut table = Guarded::<i32, 2>::poisoned([2, 3], [5, 1], 0);
        let mut lengths = Guarded::<i32, 1>::poisoned([2], [1], 0);
        let (mut to, mut to_lengths) = (table.upload(device)?, lengths.upload(device)?);
        CsrPages::new(8, &a, &b, &c).run(&mut to, &mut to_lengths)?;
        table.download(to)?;
        lengths.download(to_lengths)?;
        if let Some(place) = table.overrun().or(lengths.overrun()) {
            return Err(format!("written outside an output, {place} from its first").into());
        }
        let of_expected = expected.map(|(pages, keys)| {
            let mut row: Vec<i32> = pages.map(|page| [40, 30, 20, 10][page]).collect();
            row.resize(3, -1);
            (row, keys)
        });
        let rows: Vec<i32> = table.elements().collect();
        let found = rows.chunks(3).map(<[i32]>::to_vec).zip(lengths.elements());
        let found: Vec<_> = found.collect();
        if found != of_expected {
            return Err(format!("{indptr:?} gives {found:?} for {of_expected:?}").into());
        }
    }
    PASSED
}

/// A table of pages in the CSR form gives attention the bits of the same pages by themselves.
fn attention(device: &Device) -> Outcome {
    let mut rng = StdRng::seed_from_u64(3);
    let mut random = |shape: [usize; 4]| {
        let count = shape.iter().product();
        let data: Vec<_> = (0..count).map(|_| f16::from_f32(rng.random())).collect();
        Tensor::new(device, shape, &data)
    };
    let (q, k, v) = (
        random([3, 4, 1, 64])?,
        random([9, 2, 16, 64])?,
        random([9, 2, 16, 64])?,
    );
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let (mut table, mut lengths) = (Tensor::zeros(device, [3, 5])?, Tensor::zeros(device, [3])?);
    let (indptr, indices) = (one(&[0, 3, 3, 8])?, one(&[8, 1, 0, 3, 2, 7, 6, 4])?);
    let last_page = one(&[5, 0, 16])?;
    CsrPages::new(16, &indptr, &indices, &last_page)
        .check_lengths(true)
        .run(&mut table, &mut lengths)?;
    let by_hand = [[8, 1, 0, 0, 0], [0; 5], [3, 2, 7, 6, 4]].concat();
    let by_hand = Tensor::new(device, [3, 5], &by_hand)?;
    let (queries, keys) = (one(&[1; 3])?, one(&[37, 0, 80])?);
    let bits = |table: &Tensor<i32, 2>, lengths: &Tensor<i32, 1>| -> Result<_> {
        let attention = Attention::new().pages(table).padded(&queries, lengths);
        let (o, lse) = attention.forward(&q, &k, &v)?;
        Ok((o.to_vec()?, lse.to_vec()?))
    };
    assert_eq!(bits(&table, &lengths)?, bits(&by_hand, &keys)?);
    PASSED
}

/// Numbers that are not allowed are found where they are asked for, on the CPU always.
fn wrong_numbers(device: &Device) -> Outcome {
    let one = |numbers: &[i32]| Tensor::new(device, [numbers.len()], numbers);
    let refused = |indptr: [i32; 3], last_page: [i32; 2]| -> Result<Error, Failed> {
        let (indptr, last_page) = (one(&indptr)?, one(&last_page)?);
        let indices = one(&[4, 3, 2, 1])?;
        let (mut table, mut lengths) =
            (Tensor::zeros(device, [2, 3])?, Tensor::zeros(device, [2])?);
        let call = CsrPages::new(8, &indptr, &indices, &last_page).check_lengths(true);
        match call.run(&mut table, &mut lengths) {
            Err(error) => Ok(error),
            Ok(()) => Err("it was allowed".into()),
        }
    };
    let offset = |index, value, min| Error::Entry {
        argument: "indptr",
        index,
        value,
        min,
        max: 4,
    };
    assert_eq!(refused([-1, 2, 3], [1, 1])?, offset(0, -1, 0));
    assert_eq!(refused([0, 2, 1], [1, 1])?, offset(2, 1, 2));
    assert_eq!(refused([0, 2, 5], [1, 1])?, offset(2, 5, 2));
    let (entry, page) = (1, 8);
    for keys in [0, 9, -1] {
        let found = refused([0, 2, 3], [8, keys])?;
        assert_eq!(found, Error::LastPage { entry, keys, page });
    }
    let found = refused([0, 0, 4], [8, 1])?;
    let (pages, most) = (4, 3);
    assert_eq!(found, Error::Pages { entry, pages, most });
    PASSED
}

/// Shapes, strides and pages that do not fit.
fn wrong_shapes(device: &Device) -> Outcome {
    let zeros = |count: usize| Tensor::<i32, 1>::zeros(device, [count]);
    let refused = |page: usize, counts: [usize; 4], table: [usize; 2]| -> Result<Error, Failed> {
        let [indptr, indices, last_page, lengths] = counts.map(zeros);
        let (indptr, indices, last_page) = (indptr?, indices?, last_page?);
        let mut table = Tensor::zeros(device, table)?;
        match CsrPages::new(page, &indptr, &indices, &last_page).run(&mut table, &mut lengths?) {
            Err(error) => Ok(error),
            Ok(()) => Err("it was allowed".into()),
        }
    };
    assert_eq!(refused(12, [3, 4, 2, 2], [2, 3])?, Error::Page(12));
    assert_eq!(refused(0, [3, 4, 2, 2], [2, 3])?, Error::Page(0));
    for (wrong, counts) in [
        ("indptr", [2, 4, 2, 2]),
        ("last_page", [3, 4, 3, 2]),
        ("lengths", [3, 4, 2, 1]),
    ] {
        let found = refused(8, counts, [2, 3])?;
        let is_named = matches!(found, Error::Shape { argument, .. } if argument == wrong);
        assert!(is_named, "{found:?}");
    }
    let found = refused(1 << 30, [3, 4, 2, 2], [2, 3])?;
    assert!(matches!(found, Error::TooLong { .. }), "{found:?}");
    let (indptr, numbers) = (zeros(3)?, zeros(2)?);
    let mut columns = Tensor::<i32, 2>::zeros(device, [3, 2])?;
    let mut columns = columns.view_mut().transpose(0, 1)?;
    let call = CsrPages::new(8, &indptr, &numbers, &numbers);
    let found = call.run(&mut columns, &mut zeros(2)?);
    let is_named = matches!(
        found,
        Err(Error::Stride {
            argument: "table",
            ..
        })
    );
    assert!(is_named, "{found:?}");
    PASSED
}

/// Runs that show faults of the kernel: entries with and without pages, one of several pieces, and numbers that are not allowed.
pub fn runs() -> [impl Fn(&Device) -> Outcome; 2] {
    let case = CsrCase {
        page_log2: 4,
        counts: vec![3, 0, 300, 1],
        beyond: [5, 1],
        before: 2,
        seed: 1,
    };
    [false, true].map(move |any| {
        let case = case.clone();
        move |device: &Device| match any {
            false => case.check(device),
            true => any_numbers(device),
        }
    })
}
