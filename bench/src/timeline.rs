//! `bench profile --timeline`: what the roles of one block of a Hopper kernel do over time.

use crate::args::Profile;
use crate::bench::Bench;
use crate::command::driver_version;
use crate::failure::Failure;
use crate::results::slug;
use crate::shape::{Dtype, Shape};
use crate::terminal::print;
use crate::{stats, table};
use anyhow::{Context, Result, ensure};
use ferroattn::{Accumulation, Device, Element, Tensor, bf16, f16};
use kernels::abi::Event;
use ladder::Recorder;
use ladder::timeline::{BLOCKS, EVENTS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Blocks of keys that are kept, around the end of a tile if there is one.
const KEPT: usize = 48;

/// The clock at each point of a block of keys, if it was passed.
type Points = [Option<u32>; Event::ALL.len()];

/// Untimed launches before the one that is watched.
const WARMUP: usize = 3;

/// The clocks at which the roles of a block passed the points of their work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// Marketing name of the GPU.
    pub device: String,
    /// When it was recorded, RFC 3339 in UTC.
    pub date: String,
    /// Version of the GPU's driver; `None` if unknown.
    pub driver: Option<String>,
    /// The kernel under watch.
    pub kernel: String,
    /// The computed shape.
    pub shape: Shape,
    /// The names of points, in their order.
    pub events: Vec<String>,
    /// The number of the first block of keys, over all tiles of the block.
    pub first: usize,
    /// For each warpgroup, the producer last, for each block of keys, for each point: the clock, which counts from the
    /// first one; `None` where a role has not such a point.
    pub clocks: Vec<Vec<Points>>,
}

/// A role's work until it passed a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The point at its end.
    pub event: Event,
    /// The block of keys of this point.
    pub block: usize,
    /// The clock at its start.
    pub from: u32,
    /// The clock at its end.
    pub to: u32,
}

/// Records a call, prints what took how long, and keeps the file.
pub fn run(args: &Profile) -> Result<(), Failure> {
    let shape = args.call.shape;
    shape.problem().map_err(anyhow::Error::from)?;
    let device = Device::cuda(0).map_err(anyhow::Error::from)?;
    let timeline = record(&device, shape).map_err(Failure::Run)?;
    let name = slug(&format!("{} {}", timeline.device, timeline.kernel));
    let file = args.results.join(name).with_extension("json");
    timeline.save(&file).map_err(Failure::Run)?;
    print(format_args!("{}\n{}", timeline.table(), file.display()));
    Ok(())
}

/// Records a call on a device.
///
/// # Errors
/// If no kernel under watch computes the call, its result is wrong, or the device fails.
pub fn record(device: &Device, shape: Shape) -> Result<Timeline> {
    match shape.dtype {
        Dtype::F16 => record_as::<f16>(device, shape),
        Dtype::Bf16 => record_as::<bf16>(device, shape),
    }
}

fn record_as<T: Element>(device: &Device, shape: Shape) -> Result<Timeline> {
    let problem = shape.problem()?;
    let mut bench = Bench::<T>::new(device, &shape, 0)?;
    let watched = |clocks| {
        // SAFETY: calls run with the address of the buffer of clocks alone, which they do not outlive.
        let planner = unsafe { Recorder::new(clocks) };
        shape.attention().planner(planner)
    };
    let plan = watched(0).plan(device.facts(), T::DTYPE, &shape.planned(&problem))?;
    let warpgroups = plan
        .steps
        .iter()
        .find(|step| step.entry.name == plan.kernel);
    let warpgroups = warpgroups.context("a launch of the kernel")?.entry.threads as usize / 128;
    let buffer = || Tensor::<u32, 3>::zeros(device, [warpgroups, BLOCKS as usize, EVENTS as usize]);
    let mut clocks = buffer()?;
    let attention = watched(clocks.address_mut());
    bench.check(&attention, Accumulation::Single)?;
    for _ in 0..WARMUP {
        bench.launch(&attention)?;
    }
    let mut clocks = buffer()?;
    bench.launch(&watched(clocks.address_mut()))?;
    let (clocks, places) = (clocks.to_vec()?, EVENTS as usize);
    let roles = clocks.chunks_exact(BLOCKS as usize * places);
    let roles = roles.map(|role| role.chunks_exact(places).map(passed).collect());
    let mut timeline = Timeline {
        device: device.name().to_owned(),
        date: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
        driver: driver_version(),
        kernel: plan.kernel.to_owned(),
        shape,
        events: Event::ALL
            .iter()
            .map(|event| format!("{event:?}"))
            .collect(),
        first: 0,
        clocks: roles.collect(),
    };
    timeline.trim();
    Ok(timeline)
}

/// The points of a block of keys that a role passed.
fn passed(clocks: &[u32]) -> Points {
    std::array::from_fn(|event| Some(clocks[event]).filter(|&clock| clock != 0))
}

impl Timeline {
    /// The number of the block of keys from which a tile's work starts, among the consumers' blocks that were kept.
    fn tiles(&self) -> impl Iterator<Item = usize> {
        let blocks = self.clocks[0].iter().enumerate();
        blocks.filter_map(|(block, points)| points[Event::Q as usize].map(|_| block))
    }

    /// Keeps [`KEPT`] blocks around the last start of a tile that has as many on both sides, and lets clocks count from
    /// the first.
    fn trim(&mut self) {
        // Consumers pass blocks by that they do not see; the producer loads all. Later blocks share the last place.
        let (producer, last) = (&self.clocks[self.consumers()], BLOCKS as usize - 1);
        let loads = producer
            .iter()
            .take(last)
            .take_while(|points| points[Event::LoadsV as usize].is_some());
        let count = loads.count();
        let middle = self
            .tiles()
            .filter(|tile| tile + KEPT / 2 <= count)
            .last()
            .unwrap_or(0);
        let first = middle.saturating_sub(KEPT / 2);
        let kept = first..(first + KEPT).min(count);
        for role in &mut self.clocks {
            *role = role[kept.clone()].to_vec();
        }
        self.first = first;
        // Clocks wrap around.
        let points = || self.clocks.iter().flatten().flatten().flatten().copied();
        let some = points().next().unwrap_or(0);
        let least = points()
            .map(|clock| clock.wrapping_sub(some) as i32)
            .min()
            .unwrap_or(0);
        let start = some.wrapping_add_signed(least);
        for clock in self.clocks.iter_mut().flatten().flatten().flatten() {
            *clock = clock.wrapping_sub(start);
        }
    }

    /// The phases of a role, in the order of time.
    pub fn phases(&self, role: usize) -> Vec<Phase> {
        let mut points = Vec::new();
        for (block, clocks) in self.clocks[role].iter().enumerate() {
            for event in Event::ALL {
                points.extend(clocks[event as usize].map(|clock| (clock, event, block)));
            }
        }
        points.sort_unstable_by_key(|&(clock, event, block)| (clock, block, event as u32));
        let pairs = points.windows(2);
        pairs
            .map(|pair| Phase {
                event: pair[1].1,
                block: pair[1].2,
                from: pair[0].0,
                to: pair[1].0,
            })
            .collect()
    }

    /// Consumers.
    pub fn consumers(&self) -> usize {
        self.clocks.len() - 1
    }

    /// The median clocks of a consumer's phases by the point at their end, and from the start of a block of keys to
    /// the next one of the same tile.
    pub fn medians(&self) -> (BTreeMap<usize, f64>, f64) {
        let (mut phases, mut steps) = (BTreeMap::<usize, Vec<f64>>::new(), Vec::new());
        for role in 0..self.consumers() {
            for phase in self.phases(role) {
                let clocks = f64::from(phase.to - phase.from);
                phases.entry(phase.event as usize).or_default().push(clocks);
            }
            for pair in self.clocks[role].windows(2) {
                let [k, next] = [0, 1].map(|i| pair[i][Event::K as usize]);
                if let (Some(k), Some(next), None) = (k, next, pair[1][Event::Q as usize]) {
                    steps.push(f64::from(next - k));
                }
            }
        }
        let phases = phases
            .into_iter()
            .map(|(event, clocks)| (event, stats::median(&clocks)));
        (phases.collect(), stats::median(&steps))
    }

    /// The medians, as a table.
    fn table(&self) -> String {
        let mut table = table::empty(&["a consumer", "clocks"], [1]);
        let (phases, step) = self.medians();
        for (event, clocks) in phases {
            table.add_row([activity(Event::ALL[event]), &format!("{clocks:.0}")]);
        }
        table.add_row(["a step", &format!("{step:.0}")]);
        format!("{}, {}: medians\n{table}", self.kernel, self.shape)
    }

    /// Writes the file and the folders it is in.
    pub fn save(&self, path: &Path) -> Result<()> {
        let write = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(path, serde_json::to_string(self)? + "\n")
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it is none of a timeline of this program's points.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let timeline: Timeline = serde_json::from_str(&text)?;
        let known = Event::ALL.iter().map(|event| format!("{event:?}"));
        ensure!(timeline.events.iter().cloned().eq(known), "other points");
        Ok(timeline)
    }
}

/// A role's activity until it passes a point.
pub fn activity(event: Event) -> &'static str {
    match event {
        Event::NeedsK | Event::NeedsV => "starts loads",
        Event::LoadsK | Event::LoadsV => "waits for a free stage",
        Event::Q => "waits for Q",
        Event::K => "waits for K",
        Event::ScoresIssued => "issues Q K^T",
        Event::Scores => "waits for Q K^T",
        Event::Softmax => "softmax",
        Event::P => "rounds P",
        Event::V => "waits for V",
        Event::ProductIssued => "issues P V",
        Event::Product => "waits for P V",
        Event::Stored => "stores O",
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::shape::Pass;
    use ferroattn::Class;
    use ferroattn::emulator::Options;

    /// A timeline of the emulated H100, whose clocks count a warp's instructions; `None` in a program without the kernels.
    pub fn emulated(shape: Shape) -> Option<Timeline> {
        let device = Device::emulator_of(Class::Sm90, Options::default()).ok()?;
        cfg!(feature = "ladder").then(|| record(&device, shape).expect("recorded"))
    }

    const SHAPE: Shape = Shape {
        batch: 1,
        heads: 1,
        kv_heads: None,
        seqlen: 192,
        seqlen_kv: Some(320),
        dim: 128,
        dim_v: None,
        dtype: Dtype::F16,
        causal: false,
        window: None,
        softcap: None,
        alibi: false,
        sinks: false,
        bias: false,
        block_mask: None,
        sequences: None,
        uneven: false,
        page: None,
        prefix: None,
        values_in_keys: false,
        fp8: None,
        invariant: None,
        pass: Pass::Forward,
    };

    /// A role passes the points of each block of keys in their order, and each consumer computes all blocks.
    #[test]
    fn points_are_passed_in_their_order() {
        let Some(timeline) = emulated(SHAPE) else {
            return;
        };
        assert_eq!(timeline.kernel, "timeline_hopper_f16_d128");
        assert_eq!((timeline.consumers(), timeline.first), (3, 0));
        let (producer, consumers) = timeline.clocks.split_last().expect("roles");
        let order = |points: &Points, events: &[Event]| {
            let clocks = events.iter().map(|&event| points[event as usize]);
            clocks.collect::<Option<Vec<_>>>().expect("all are passed")
        };
        for (block, points) in producer.iter().enumerate() {
            let clocks = order(points, &Event::ALL[..4]);
            assert!(clocks.is_sorted(), "{block}: {clocks:?}");
            assert!(
                points[4..].iter().all(Option::is_none),
                "{block}: the consumers'"
            );
        }
        for role in consumers {
            assert_eq!(role.len(), 5, "blocks of 64 keys");
            for (block, points) in role.iter().enumerate() {
                let clocks = order(
                    points,
                    &Event::ALL[Event::K as usize..=Event::Product as usize],
                );
                assert!(clocks.is_sorted(), "{block}: {clocks:?}");
                let starts = points[Event::Q as usize].is_some();
                assert_eq!(starts, block == 0, "one tile");
            }
        }
        let json = serde_json::to_string(&timeline).expect("plain data");
        assert_eq!(
            serde_json::from_str::<Timeline>(&json).expect("the same"),
            timeline
        );
    }

    /// Phases fill the time of a role without gaps.
    #[test]
    fn phases_follow_each_other() {
        let causal = Shape {
            causal: true,
            ..SHAPE
        };
        let Some(timeline) = emulated(causal) else {
            return;
        };
        for role in 0..timeline.clocks.len() {
            let phases = timeline.phases(role);
            assert!(phases.len() > 10, "{role}");
            assert!(phases.windows(2).all(|pair| pair[0].to == pair[1].from));
        }
        let (medians, step) = timeline.medians();
        assert!(medians.len() >= 8 && step > 0.0, "{medians:?}, {step}");
    }

    #[test]
    fn other_calls_are_refused() {
        let Ok(device) = Device::emulator_of(Class::Sm90, Options::default()) else {
            return;
        };
        let wide = Shape { dim: 96, ..SHAPE };
        let bf16 = Shape {
            dtype: Dtype::Bf16,
            ..SHAPE
        };
        for shape in [wide, bf16] {
            let error = record(&device, shape).expect_err("refused");
            assert!(format!("{error:#}").contains("timeline"), "{error:#}");
        }
    }

    /// Clocks wrap around after some seconds.
    #[test]
    fn clocks_count_from_the_first() {
        let mut block = [None; Event::ALL.len()];
        block[Event::LoadsV as usize] = Some(u32::MAX - 1);
        block[Event::P as usize] = Some(5);
        let mut timeline = Timeline {
            device: String::new(),
            date: String::new(),
            driver: None,
            kernel: String::new(),
            shape: SHAPE,
            events: Vec::new(),
            first: 0,
            clocks: vec![vec![block, [None; Event::ALL.len()]]; 2],
        };
        timeline.trim();
        block[Event::LoadsV as usize] = Some(0);
        block[Event::P as usize] = Some(7);
        assert_eq!(timeline.clocks, [[block], [block]]);
    }
}
