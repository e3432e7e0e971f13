//! Mutants of the real kernels: each has one fault, as a slip in a kernel or a compiler's wrong
//! turn would make it, and each must be reported, by a rule of the emulator or by a wrong result.
//!
//! `cargo test -p tests --test devices mutants -- --nocapture` prints what caught each. With `FERROATTN_SURVEY=8` it also
//! prints which runs and which of 8 schedules catch it.

mod backward;
mod change;
mod clusters;
mod combine;
mod csr;
mod decode;
mod e4m3;
mod far;
mod forward;
mod fp8;
mod gemm;
mod hopper;
mod invariance;
mod latent;
mod merge;
mod options;
mod pack;
mod packed;
mod packed_queries;
mod pages;
#[cfg(feature = "ladder")]
mod rungs;
mod shared_rows;

use crate::emulated::{copies_are_of_every_element, without_clusters};
use ferroattn::emulator::{Module, Options};
use ferroattn::internals::Entry;
use ferroattn::{Class, Device, Facts, device::Emulator};
use kernels::abi::{Switch, Switches};
use kernels::catalog::{self, Auxiliary, Family, Kernel};
use kernels::text;
use libtest_mimic::Failed;
use ndarray::{Axis, s};
use std::collections::BTreeSet;
use tests::{Case, Inputs, Layout, PASSED, Test};

/// Which of the lines that fit a mutation it changes.
#[derive(Clone, Copy)]
enum Which {
    Nth(usize),
    Last,
    All,
}
use Which::{All, Last, Nth};

struct Mutant {
    what: &'static str,
    kernel: &'static str,
    /// The text that the changed lines contain.
    pattern: &'static str,
    which: Which,
    change: fn(&str) -> String,
}

const FULL: &str = "forward_f16_d64";

/// The tests of this folder.
pub fn tests() -> Vec<Test> {
    let families = [
        forward::MUTANTS,
        gemm::MUTANTS,
        hopper::pipeline::MUTANTS,
        hopper::products::MUTANTS,
        hopper::store::MUTANTS,
        hopper::chunks::MUTANTS,
        hopper::gradient::MUTANTS,
        shared_rows::MUTANTS,
        decode::MUTANTS,
        clusters::MUTANTS,
        combine::MUTANTS,
        csr::MUTANTS,
        merge::MUTANTS,
        pack::MUTANTS,
        backward::MUTANTS,
        far::MUTANTS,
        packed::MUTANTS,
        packed_queries::MUTANTS,
        pages::MUTANTS,
        latent::MUTANTS,
        fp8::MUTANTS,
        e4m3::MUTANTS,
        invariance::MUTANTS,
        #[cfg(feature = "ladder")]
        rungs::MUTANTS,
    ];
    let mutants = families.into_iter().chain(options::ALL).flatten();
    let kernels: BTreeSet<_> = mutants.clone().map(|mutant| mutant.kernel).collect();
    let mutants = mutants.map(|mutant| {
        let name = mutant.what.replace(' ', "_");
        Test::emulator(format!("{}::{name}", mutant.kernel), |_| {
            let subject = Subject::named(mutant.kernel);
            let text = text::prune(&mutant.apply(&subject.text()));
            Module::parse(&text, mutant.what).unwrap_or_else(|error| panic!("{error}"));
            let by = subject.caught(&text, SCHEDULES).ok_or("not caught")?;
            println!("{:50} {:24} {by}", mutant.what, mutant.kernel);
            if let Some(schedules) = schedules_to_try() {
                let needs = subject.needs(&text, schedules);
                println!("survey: {:50} {:24} {needs}", mutant.what, mutant.kernel);
            }
            PASSED
        })
    });
    let unchanged = kernels.into_iter().map(|name| {
        Test::emulator(format!("{name}::unchanged"), move |_| {
            let subject = Subject::named(name);
            // Tests of schedules run right kernels under many.
            match subject.caught(&text::prune(&subject.text()), 1) {
                Some(by) => Err(by.into()),
                None => PASSED,
            }
        })
    });
    mutants.chain(unchanged).collect()
}

/// Schedules under which a fault must show, with one multiprocessor or two.
const SCHEDULES: u64 = 3;

/// A kernel with faults.
struct Subject {
    entry: Entry,
    /// A class of devices that run it.
    class: Class,
    /// The runs that show the faults.
    runs: Vec<Run>,
}

/// A case to run on a device.
type Run = Box<dyn Fn(&Device) -> Result<(), Failed>>;

impl Subject {
    /// The kernel of that name.
    fn named(name: &str) -> Self {
        #[cfg(feature = "ladder")]
        if let Some(subject) = rungs::subject(name) {
            return subject;
        }
        let kernel = catalog::named(name).expect("in the catalog");
        let (runs, switches) = match (options::runs(kernel), far::runs(name)) {
            (Some(runs), _) => (Some(runs), options::switches(name)),
            (None, Some((runs, switches))) => (Some(runs), switches),
            (None, None) => match pages::runs(name)
                .or(clusters::runs(name))
                .or(packed_queries::runs(name))
                .or(latent::runs(name))
                .or(fp8::runs(name))
                .or(e4m3::runs(name))
                .or(invariance::runs(kernel.name))
            {
                Some((runs, switches)) => (Some(runs), switches),
                None => (None, Switches::NONE),
            },
        };
        Subject {
            entry: Entry {
                switches,
                ..kernel.into()
            },
            class: kernel.class().into(),
            runs: runs.unwrap_or_else(|| self::runs(kernel)),
        }
    }

    /// The kernel's text, with its switches on and all that is off, for mutants to change.
    fn text(&self) -> String {
        let text = self.entry.whole_text();
        text.expect("compiled, as the emulator is there")
    }

    /// A GPU with shared memory for the kernel, which loads another text for its module.
    fn device(
        &self,
        text: &str,
        multiprocessors: u32,
        options: Options,
    ) -> ferroattn::Result<Device> {
        let mut facts = Facts::emulated(self.class);
        facts.multiprocessors = multiprocessors;
        // A call with splits has clusters where there is room for them, and the switch is on in each text or in none.
        if self.entry.switches.has(Switch::Cluster) {
            facts = Facts::emulated(Class::Sm90);
        } else if self.entry.name.starts_with("decode_") && self.entry.target.is_portable {
            facts = without_clusters(facts);
        }
        Device::with_driver(Emulator::new(facts, options).with_ptx(self.entry.name, text))
    }

    /// The finding that catches a fault in the text of the kernel, under so many schedules.
    fn caught(&self, text: &str, schedules: u64) -> Option<String> {
        let cases =
            (0..schedules).flat_map(|schedule| self.runs.iter().map(move |run| (schedule, run)));
        let mut findings = cases.filter_map(|(schedule, run)| self.finding(text, schedule, run));
        findings.next()
    }

    /// The finding of a run under a schedule in the text of the kernel.
    fn finding(&self, text: &str, schedule: u64, run: &Run) -> Option<String> {
        let options = Options {
            seed: schedule,
            instruction_budget: 1 << 20,
            ..Options::default()
        };
        // Persistent blocks compute several tiles: one block takes them all, or two share them.
        let multiprocessors = 1 + (schedule % 2) as u32;
        let device = self.device(text, multiprocessors, options);
        let failed = run(&device.expect("an emulated GPU")).err()?;
        let reason = failed.message().unwrap_or_default();
        Some(reason.lines().next().unwrap_or_default().to_owned())
    }

    /// The runs that catch a fault under the first schedule, by number, and the schedules under which the first of these
    /// catches it alone; all runs, if that schedule shows it to none.
    fn needs(&self, text: &str, schedules: u64) -> String {
        let catches = |schedule, number: &usize| {
            let finding = self.finding(text, schedule, &self.runs[*number]);
            finding.is_some()
        };
        let all: Vec<usize> = (0..self.runs.len()).collect();
        let under_first: Vec<usize> = { all.iter().copied() }
            .filter(|number| catches(0, number))
            .collect();
        let tried = under_first.first().map_or(&all[..], std::slice::from_ref);
        let under =
            (0..schedules).filter(|&schedule| tried.iter().any(|number| catches(schedule, number)));
        let under: Vec<u64> = under.collect();
        format!("runs {under_first:?} of {}, schedules {under:?}", all.len())
    }
}

/// How many schedules to try for a table of what each fault needs: a number in the environment.
fn schedules_to_try() -> Option<u64> {
    let number = std::env::var("FERROATTN_SURVEY").ok()?;
    Some(number.parse().expect("a number of schedules"))
}

/// The runs that show a fault of a kernel.
fn runs(mutated: &'static Kernel) -> Vec<Run> {
    if mutated.gemm().is_some() {
        return gemm::cases(mutated)
            .map(|case| -> Run { Box::new(move |device| case.check(device).map(drop)) })
            .into();
    }
    if let Family::Backward(_) = mutated.family {
        return backward::runs();
    }
    if let Family::HopperBackward(_) = mutated.family {
        return hopper::gradient::runs(mutated.name);
    }
    if let Family::Auxiliary(Auxiliary::Csr) = mutated.family {
        let runs = crate::csr::runs();
        return runs
            .map(|run| -> Run { Box::new(move |device| run(device).map(drop)) })
            .into();
    }
    if let Family::Auxiliary(Auxiliary::Merge(_) | Auxiliary::MergeBackward(_)) = mutated.family {
        let runs = crate::merge::runs().map(|run| -> Run { Box::new(move |d| run(d).map(drop)) });
        let of_prefix = crate::prefix::runs();
        let of_prefix = of_prefix.map(|run| -> Run { Box::new(move |d| run(d).map(drop)) });
        return runs.into_iter().chain(of_prefix).collect();
    }
    // A combine kernel shows its faults after one that splits, the pack kernel before any, the unpack kernel after any.
    let kernel = match mutated.family {
        Family::Auxiliary(_) => catalog::named(FULL).expect("in the catalog"),
        _ => mutated,
    };
    let forward = kernel.forward().expect("it computes attention");
    // Hopper's tiles have more rows, and its rings more stages.
    let (seqlen_q, seqlen_kv) = match kernel.takes_maps() {
        true => (300, 400),
        false => (150, 210),
    };
    let (batch, dim) = match mutated.family {
        Family::Auxiliary(Auxiliary::Unpack) => (2, forward.dim as usize - 3),
        _ => (1, forward.dim as usize),
    };
    let case = Case {
        dtype: forward.dtype.into(),
        batch,
        seqlen_q,
        seqlen_kv,
        dim,
        causal: forward.kind.mask.serves(true),
        kernel: Some(kernel.name.to_owned()),
        ..Case::default()
    };
    let mut runs = runs_like(&case);
    if mutated.name == pages::COMBINE {
        runs.extend(pages::runs_of_units());
    }
    // Cases have margins around their tensors; these copies are of whole buffers.
    if let Family::Auxiliary(Auxiliary::Pack) = mutated.family {
        runs.push(Box::new(|device| {
            copies_are_of_every_element(device).map(drop)
        }));
    }
    runs
}

/// Runs of the [`cases`] that a case stands for.
fn runs_like(case: &Case) -> Vec<Run> {
    let run = |(case, inputs): (Case, Inputs)| -> Run {
        Box::new(move |device| case.run(device, &inputs).map(drop))
    };
    cases(case).into_iter().map(run).collect()
}

/// Ragged cases: with grouped heads, aligned and not, split and not, with scores that raise the maxima of some
/// rows in the main loop, with a negative scale, and with an infinity that the causal mask hides.
fn cases(case: &Case) -> Vec<(Case, Inputs)> {
    let case = Case {
        heads: 2,
        splits: 1,
        ..case.clone()
    };
    let seqlen_kv = case.seqlen_kv;
    let lying = |layout, splits, kv_heads| Case {
        q: layout,
        k: layout,
        v: layout,
        o: layout,
        splits,
        kv_heads,
        ..case.clone()
    };
    let random = [
        case.clone(),
        lying(Layout::Padded, 1, 2),
        lying(Layout::OddRows, 2, 1),
        // The copy of v ends with the workspace.
        lying(Layout::OddRows, 1, 1),
    ];
    let mut cases = Vec::from(random.map(|case| {
        let inputs = case.inputs();
        (case, inputs)
    }));
    let mut rising = case.inputs();
    let scale = (case.dim as f32).sqrt().recip();
    for (i, mut queries) in rising.q.axis_iter_mut(Axis(2)).enumerate() {
        let rises = i.is_multiple_of(32);
        queries.slice_mut(s![.., .., 0]).fill(f32::from(rises));
    }
    for (j, mut keys) in rising.k.axis_iter_mut(Axis(2)).enumerate() {
        let rise = 0.25 / scale * (seqlen_kv - 1 - j) as f32;
        keys.slice_mut(s![.., .., 0]).fill(rise);
    }
    let mut infinite = case.inputs();
    infinite
        .v
        .slice_mut(s![.., .., seqlen_kv - 1, 0])
        .fill(f32::INFINITY);
    let negative = Case {
        scale: Some(-scale),
        ..case.clone()
    };
    let inputs = negative.inputs();
    cases.extend([(case.clone(), rising), (negative, inputs), (case, infinite)]);
    cases
}

impl Mutant {
    /// The module's text with the fault in it.
    fn apply(&self, text: &str) -> String {
        let fitting: Vec<usize> = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.contains(self.pattern) && !line.contains("//"))
            .map(|(index, _)| index)
            .collect();
        let changed = match self.which {
            Nth(n) => fitting.get(n).map_or(&[][..], std::slice::from_ref),
            Last => fitting.last().map_or(&[][..], std::slice::from_ref),
            All => &fitting[..],
        };
        assert!(
            !changed.is_empty(),
            "{}: no line with {:?}",
            self.what,
            self.pattern
        );
        let lines = text.lines().enumerate().map(|(index, line)| {
            if changed.contains(&index) {
                (self.change)(line)
            } else {
                line.to_owned()
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
