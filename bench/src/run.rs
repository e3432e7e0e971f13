//! A run: every shape, with all contenders in turns.

use crate::peers::Peers;
use crate::plan::Plan;
use crate::results::{Measurement, Results, Speed, Timing};
use crate::subject::{Subject, time};
use anyhow::{Context, Result};
use ferroattn::Device;

/// Turns of each contender's timed launches. Every second turn is in reverse order, so that drifting clocks and
/// heat affect all contenders alike.
const TURNS: usize = 4;

/// Untimed launches at the start of a turn. The timed launches are queued while these run.
const LEAD: usize = 2;

/// Milliseconds of a slow launch: such a kernel of the project is launched once a turn, without a warm-up.
const SLOW_MS: f64 = 100.0;

/// Measures the shapes one by one, and calls `progress` with the results so far after each.
///
/// # Errors
/// If a kernel does not serve a shape or computes it wrongly, or if a device fails. A peer that fails has no times.
pub fn run<S: Subject>(
    device: &Device,
    peers: &mut Peers,
    shapes: &[S],
    plan: &Plan,
    mut results: Results<S>,
    mut progress: impl FnMut(&Results<S>) -> Result<()>,
) -> Result<Results<S>> {
    for shape in shapes {
        let measurement = measure(device, peers, shape, plan);
        results
            .measurements
            .push(measurement.with_context(|| shape.to_string())?);
        progress(&results)?;
    }
    Ok(results)
}

fn measure<S: Subject>(
    device: &Device,
    peers: &mut Peers,
    shape: &S,
    plan: &Plan,
) -> Result<Measurement<S>> {
    let flops = shape.flops()?;
    let mut kernels = shape.contenders(device, plan)?;
    let names = kernels.names();
    let contenders = peers.contenders();
    let mut refusals = peers.setup(shape, plan.seed);
    for (contender, reason) in &refusals {
        eprintln!("{contender} does not serve {shape}: {reason}");
    }

    let counts = (names.len(), contenders.len());
    let mut times = in_turns(plan, counts, |contender, untimed, timed| {
        match contenders.get(contender.wrapping_sub(names.len())) {
            None => time(device, untimed, timed, || kernels.launch(contender)),
            Some(peer) if refusals.contains_key(peer) => Ok(Vec::new()),
            Some(peer) => Ok(peers.time(peer, untimed, timed).unwrap_or_else(|error| {
                eprintln!("{peer} fails at {shape}: {error:#}");
                refusals.insert(peer.clone(), format!("{error:#}"));
                Vec::new()
            })),
        }
    })?;
    let peer_times = times.split_off(names.len());
    let timing = |(name, splits, times): (String, Option<u32>, Vec<f64>)| Timing {
        name,
        splits,
        speed: (!times.is_empty()).then(|| Speed {
            samples: (times.len() < plan.iters).then_some(times.len()),
            ..Speed::new(flops, &times)
        }),
    };
    let kernels = names.into_iter().zip(times);
    let kernels = kernels.map(|((name, splits), times)| (name, splits, times));
    let peers = contenders.into_iter().zip(peer_times);
    let peers = peers.map(|(name, times)| match refusals.contains_key(&name) {
        true => (name, None, Vec::new()),
        false => (name, None, times),
    });
    Ok(Measurement {
        shape: *shape,
        kernels: kernels.map(timing).collect(),
        peers: peers.map(timing).collect(),
    })
}

/// The times of each contender: `kernels` kernels, then `peers` peers. `launch(contender, untimed, timed)` measures
/// the timed launches.
fn in_turns(
    plan: &Plan,
    (kernels, peers): (usize, usize),
    mut launch: impl FnMut(usize, usize, usize) -> Result<Vec<f64>>,
) -> Result<Vec<Vec<f64>>> {
    // Only kernels are tested for slowness: a peer's first launch may choose and compile its kernel.
    let mut slow = vec![false; kernels + peers];
    for (contender, slow) in slow.iter_mut().enumerate().take(kernels) {
        *slow = launch(contender, 0, 1)?.iter().any(|&ms| ms > SLOW_MS);
    }
    let mut times = vec![Vec::new(); kernels + peers];
    let mut order: Vec<usize> = (0..kernels + peers).collect();
    for (untimed, timed) in turns(plan.warmup, plan.iters) {
        for &contender in &order {
            let (untimed, timed) = match slow[contender] {
                true => (0, timed.min(1)),
                false => (untimed, timed),
            };
            times[contender].extend(launch(contender, untimed, timed)?);
        }
        // Late contenders find a GPU that the others have heated: next turn the others come late.
        order.reverse();
    }
    Ok(times)
}

/// Untimed and timed launches of each turn: the warm-up, then the timed launches in equal parts.
fn turns(warmup: usize, iters: usize) -> Vec<(usize, usize)> {
    let turns = TURNS.min(iters);
    let timed = (0..turns).map(|turn| (LEAD, (iters + turn) / turns));
    [(warmup, 0)].into_iter().chain(timed).collect()
}

#[cfg(test)]
mod tests {
    use super::{in_turns, run, turns};
    use crate::choice::Choice;
    use crate::grid::Grid;
    use crate::peer::tests::{fake, start};
    use crate::peers::Peers;
    use crate::peers::tests::of;
    use crate::plan::Plan;
    use crate::results::Results;
    use crate::results::tests::results;
    use crate::shape::Pass;
    use ferroattn::Device;
    use std::num::NonZeroUsize;

    /// Four timed launches of the best kernels, of batch invariant calls too if they have splits of so many keys.
    fn plan(invariant: Option<u32>) -> Plan {
        Plan {
            kernel: Choice::Auto,
            splits: 0,
            invariant,
            iters: 4,
            warmup: 0,
            seed: 0,
        }
    }

    #[test]
    fn turns_share_the_launches_out() {
        assert_eq!(turns(5, 20), [(5, 0), (2, 5), (2, 5), (2, 5), (2, 5)]);
        assert_eq!(turns(0, 3), [(0, 0), (2, 1), (2, 1), (2, 1)]);
        for iters in 1..50 {
            let timed = turns(1, iters)
                .iter()
                .map(|(_, timed)| timed)
                .sum::<usize>();
            assert_eq!(timed, iters);
        }
    }

    #[test]
    fn slow_kernels_are_launched_less_often() {
        let plan = Plan {
            kernel: Choice::All,
            splits: 0,
            invariant: None,
            iters: 20,
            warmup: 5,
            seed: 0,
        };
        // Two kernels, the second one slow, and a peer that is slow, too.
        let launch_ms = [100.0, 100.1, 900.0];
        let mut launches = Vec::new();
        let times = in_turns(&plan, (2, 1), |contender, untimed, timed| {
            launches.push((contender, untimed, timed));
            Ok(vec![launch_ms[contender]; timed])
        });
        let samples: Vec<_> = times.expect("timed").iter().map(Vec::len).collect();
        assert_eq!(samples, [20, 4, 20]);
        let first = [(0, 0, 1), (1, 0, 1)];
        let warmup = [(0, 5, 0), (1, 0, 0), (2, 5, 0)];
        let turns = [
            [(2, 2, 5), (1, 0, 1), (0, 2, 5)],
            [(0, 2, 5), (1, 0, 1), (2, 2, 5)],
        ];
        let expected = [&first[..], &warmup, &turns.concat(), &turns.concat()].concat();
        assert_eq!(launches, expected);
    }

    /// Each shape is answered in another way: by an error of a contender, of the setup, by an end, and by times.
    #[test]
    fn peers_that_fail_lose_their_own_times() {
        const SCRIPT: &str = r#"
            echo '{"contenders": ["steady", "shaky"], "versions": {}}'
            while read -r line; do
                case "$line" in
                    *setup*'"dim":72,'*) echo '{"error": "no memory"}' ;;
                    *setup*) shape="$line"; echo '{"refusals": {}}' ;;
                    *'"iters":0'*) echo '{"ms": []}' ;;
                    *steady*) echo '{"ms": [1.0]}' ;;
                    *) case "$shape" in
                        *'"dim":64,'*) echo '{"error": "lost"}' ;;
                        *'"dim":80,'*) exit 1 ;;
                        *) echo '{"ms": [1.0]}' ;;
                    esac ;;
                esac
            done"#;
        let mut shapes = Grid::Quick.shapes().expect("shapes");
        shapes.truncate(4);
        for (shape, dim) in shapes.iter_mut().zip([64, 72, 80, 88]) {
            (shape.batch, shape.heads, shape.seqlen, shape.dim) = (1, 1, 8, dim);
        }
        let plan = plan(None);
        let empty = Results {
            measurements: Vec::new(),
            ..results(&Grid::Quick, |_| 1.0)
        };
        let mut peers = of([start(SCRIPT).expect("a shell")]);
        let device = Device::cpu();
        let results =
            run(&device, &mut peers, &shapes, &plan, empty, |_| Ok(())).expect("measured");
        let timed = results.measurements.iter().map(|measurement| {
            assert!(measurement.kernels[0].speed.is_some());
            let peers = measurement.peers.iter();
            peers.map(|peer| peer.speed.is_some()).collect::<Vec<_>>()
        });
        let [lost, no_memory, ended, served] = &timed.collect::<Vec<_>>()[..] else {
            panic!("four shapes");
        };
        assert_eq!(*lost, [true, false]);
        assert_eq!(*no_memory, [false, false]);
        assert_eq!(*ended, [false, false], "the end of one is the end of both");
        assert_eq!(*served, [true, true], "by another child");
    }

    #[test]
    fn batch_invariant_calls_stand_beside_the_others() {
        let mut shapes = Grid::Quick.shapes().expect("shapes");
        shapes.truncate(2);
        for shape in &mut shapes {
            (shape.batch, shape.heads, shape.seqlen) = (1, 2, 24);
        }
        (shapes[1].pass, shapes[1].sequences) = (Pass::Backward, NonZeroUsize::new(3));
        let plan = plan(Some(64));
        let empty = Results {
            measurements: Vec::new(),
            ..results(&Grid::Quick, |_| 1.0)
        };
        let device = Device::cpu();
        let results = run(
            &device,
            &mut Peers::default(),
            &shapes,
            &plan,
            empty,
            |_| Ok(()),
        )
        .expect("measured");
        let names = results.measurements.iter().map(|measurement| {
            assert!(
                measurement
                    .kernels
                    .iter()
                    .all(|timing| timing.speed.is_some())
            );
            let names = measurement.kernels.iter().map(|timing| &*timing.name);
            names.collect::<Vec<_>>()
        });
        let forward = vec!["cpu", "cpu:batch-invariant:split-keys=64"];
        let backward = vec!["cpu", "cpu:any-order", "cpu:batch-invariant"];
        assert_eq!(names.collect::<Vec<_>>(), [forward, backward]);
    }

    #[test]
    fn kernels_and_peers_are_measured_side_by_side() {
        let mut shapes = Grid::Quick.shapes().expect("shapes");
        for shape in &mut shapes {
            (shape.batch, shape.heads, shape.seqlen) = (1, 2, 24);
        }
        let plan = Plan {
            kernel: Choice::Auto,
            splits: 0,
            invariant: None,
            iters: 8,
            warmup: 2,
            seed: 0,
        };
        let empty = Results {
            measurements: Vec::new(),
            ..results(&Grid::Quick, |_| 1.0)
        };
        shapes[0].pass = Pass::Backward;
        for shape in &mut shapes[..2] {
            (shape.softcap, shape.alibi, shape.sinks) = (Some(2.0), true, true);
            shape.window = "5,3".parse().ok();
            (shape.bias, shape.block_mask) = (true, NonZeroUsize::new(1));
            shape.dim_v = Some(72);
        }
        let mut saved = 0;
        let progress = |results: &Results| {
            saved += 1;
            assert_eq!(results.measurements.len(), saved);
            Ok(())
        };
        let mut peers = of([fake()]);
        let device = Device::cpu();
        let results = run(&device, &mut peers, &shapes, &plan, empty, progress).expect("measured");
        assert_eq!(saved, shapes.len());
        for (measurement, shape) in results.measurements.iter().zip(&shapes) {
            assert_eq!(measurement.shape, *shape);
            assert_eq!(measurement.kernels[0].name, "cpu");
            let splits = (shape.pass == Pass::Forward).then_some(1);
            assert_eq!(measurement.kernels[0].splits, splits);
            let any_order = measurement.kernels.get(1).map(|timing| &*timing.name);
            assert_eq!(any_order, splits.is_none().then_some("cpu:any-order"));
            assert!(measurement.kernels[0].speed.is_some());
            let [flash, picky] = &measurement.peers[..] else {
                panic!("two peers");
            };
            let speed = flash.speed.expect("it serves all shapes");
            assert_eq!((speed.median_ms, speed.min_ms), (2.0, 1.0));
            assert_eq!(speed.samples, None, "as many as asked for");
            assert_eq!(picky.speed, None);
        }
    }
}
