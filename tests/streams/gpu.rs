//! Features of the CUDA driver alone: streams of other owners, graphs, several GPUs.

use super::call::{Call, KINDS, Kind};
use crate::decoder::{Run, Sizes};
use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUgraphNodeType, CUstreamCaptureMode, cuGraphGetNodes,
    cuGraphNodeGetType,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream};
use ferroattn::{Device, Error, RawWorkspace, Tensor};
use libtest_mimic::Completion;
use std::ptr;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use tests::{Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    vec![
        Test::cuda("streams_of_the_caller", streams),
        Test::cuda("graphs", graphs),
        Test::cuda("devices_opened_in_a_capture", opened_in_a_capture),
        Test::cuda("graph_of_a_step", graph_of_a_step),
        Test::cuda("steps_on_two_streams", steps_on_two_streams),
        Test::cuda("threads", threads),
        Test::cuda("two_devices", two_devices),
    ]
}

/// Held by tests that capture, and by those that close a device: its modules are unloaded, which breaks captures.
static CAPTURES: Mutex<()> = Mutex::new(());

/// The lock; a test that failed with it leaves nothing behind.
fn alone() -> MutexGuard<'static, ()> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that waits for no other, of cudarc's owner.
fn stream() -> Result<Arc<CudaStream>, cudarc::driver::DriverError> {
    CudaContext::new(0)?.new_stream()
}

/// Memory of the device for both passes.
struct Workspace {
    _memory: Tensor<u8, 1>,
    raw: RawWorkspace,
}

impl Workspace {
    fn new(device: &Device, call: &Call) -> Result<Self, Error> {
        let plans = call.plans(device)?;
        let bytes = plans.iter().map(|plan| plan.workspace_bytes).max();
        let bytes = bytes.expect("two plans").max(1);
        let mut memory = Tensor::zeros(device, [bytes])?;
        let raw = RawWorkspace {
            address: memory.as_raw_mut().address,
            bytes,
        };
        Ok(Workspace {
            _memory: memory,
            raw,
        })
    }
}

/// Calls between copies on a stream that nothing else waits for.
fn streams(device: &Device) -> Outcome {
    let stream = stream()?;
    for kind in KINDS {
        let mut call = Call::new(device, kind, 1)?;
        let expected = call.expected(device)?;
        let workspace = Workspace::new(device, &call)?;
        for in_workspace in [false, true] {
            call.poison(device)?;
            // The stream waits for no other: reading waits for the default one.
            assert!(call.is_poisoned()?);
            // SAFETY: tensors and workspace live until the stream was waited for, which lives on.
            unsafe {
                let raw = stream.cu_stream().cast();
                // Twice, one after the other.
                for _ in 0..2 {
                    match in_workspace {
                        false => call.queue(device, raw)?,
                        true => call.queue_in(device, workspace.raw, raw)?,
                    }
                }
            }
            stream.synchronize()?;
            assert_eq!(call.bits()?, expected, "{kind:?}");
        }
    }
    PASSED
}

/// The work that a stream captures, as a graph. A global mode would forbid the allocations of tests beside this one.
fn captured(
    stream: &Arc<CudaStream>,
    queue: impl FnOnce() -> Result<(), Error>,
) -> Result<CudaGraph, Box<dyn std::error::Error>> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let queued = queue();
    let none = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(none);
    queued?;
    Ok(graph?.expect("work"))
}

/// Replays of a graph of both passes, each after other numbers came into its tensors.
fn replays(device: &Device, mut call: Call, graph: &CudaGraph, stream: &CudaStream) -> Outcome {
    for seed in 1..4 {
        call.change(device, seed)?;
        let expected = call.expected(device)?;
        call.poison(device)?;
        // Waiting for the whole device would break captures of other tests.
        assert!(call.is_poisoned()?);
        graph.launch()?;
        stream.synchronize()?;
        assert_eq!(call.bits()?, expected, "replay {seed}");
    }
    PASSED
}

/// Graphs of each kind of call, in memory of the caller and in the library's own.
fn graphs(device: &Device) -> Outcome {
    let _alone = alone();
    let stream = stream()?;
    let raw = stream.cu_stream().cast();
    for kind in KINDS {
        for in_workspace in [false, true] {
            let call = Call::new(device, kind, 1)?;
            let workspace = Workspace::new(device, &call)?;
            // SAFETY: tensors and workspace outlive the graph.
            let graph = captured(&stream, || unsafe {
                match in_workspace {
                    false => call.queue(device, raw),
                    true => call.queue_in(device, workspace.raw, raw),
                }
            })?;
            replays(device, call, &graph, &stream)?;
        }
    }
    PASSED
}

/// A device that is opened, and kernels that are loaded, while a stream of the thread is captured.
fn opened_in_a_capture(device: &Device) -> Outcome {
    let _alone = alone();
    let stream = stream()?;
    let raw = stream.cu_stream().cast();
    let call = Call::new(device, Kind::Splits, 1)?;
    let workspace = Workspace::new(device, &call)?;
    let mut opened = None;
    // SAFETY: tensors and workspace outlive the graph, and so does the device.
    let graph = captured(&stream, || unsafe {
        let device = opened.insert(Device::cuda(0)?);
        call.queue_in(device, workspace.raw, raw)
    })?;
    replays(device, call, &graph, &stream)
}

/// What the nodes of a graph do.
fn nodes(graph: &CudaGraph) -> Result<Vec<CUgraphNodeType>, Box<dyn std::error::Error>> {
    let (graph, mut count) = (graph.cu_graph(), 0);
    // SAFETY: the graph lives; without an array the driver writes the count alone.
    unsafe { cuGraphGetNodes(graph, ptr::null_mut(), &mut count) }.result()?;
    let mut nodes = vec![ptr::null_mut(); count];
    // SAFETY: the array has room for all nodes.
    unsafe { cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.result()?;
    let kinds = nodes.into_iter().map(|node| {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is one of the graph, which lives.
        unsafe { cuGraphNodeGetType(node, &mut kind) }.result()?;
        Ok(kind)
    });
    kinds.collect()
}

/// One graph for a thousand steps of decoding, whose lengths grow on the device; there is nothing in it but kernels.
fn graph_of_a_step(device: &Device) -> Outcome {
    let _alone = alone();
    let stream = stream()?;
    // SAFETY: the stream outlives this one, and is waited for before and behind what the default stream does.
    let borrowed = unsafe { device.borrow_stream(stream.cu_stream().cast()) };
    let sizes = Sizes::paged(1, 1000);
    let mut run = Run::new(device, sizes)?;
    let graph = captured(&stream, || run.step(Some(&borrowed)))?;
    for kind in nodes(&graph)? {
        assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    }
    for step in 0..sizes.steps {
        run.load(step)?;
        run.wait()?;
        graph.launch()?;
        stream.synchronize()?;
        run.keep(step)?;
        run.wait()?;
    }
    run.check()
}

/// Two decoders at once, each on a stream of its own.
fn steps_on_two_streams(device: &Device) -> Outcome {
    let streams = [device.stream()?, device.stream()?];
    let sizes = [Sizes::paged(1, 50), Sizes::paged(3, 50)];
    let mut runs = [Run::new(device, sizes[0])?, Run::new(device, sizes[1])?];
    for step in 0..50 {
        for run in &mut runs {
            run.load(step)?;
        }
        for (run, stream) in runs.iter_mut().zip(&streams) {
            run.step(Some(stream))?;
        }
        for run in &mut runs {
            run.keep(step)?;
        }
    }
    for run in runs {
        run.check()?;
    }
    PASSED
}

/// Four threads with a call each, again and again.
fn threads(device: &Device) -> Outcome {
    const THREADS: usize = 4;
    let together = Barrier::new(THREADS);
    let repeat = |number: usize| -> Result<bool, Error> {
        let kind = KINDS[number];
        let call = Call::new(device, kind, number)?;
        let expected = call.expected(device)?;
        together.wait();
        let mut are_alike = true;
        for _ in 0..50 {
            are_alike &= call.expected(device)? == expected;
        }
        Ok(are_alike)
    };
    thread::scope(|scope| {
        let repeat = &repeat;
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || repeat(number)))
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic")?);
        }
        PASSED
    })
}

/// Two GPUs in one thread, in turns, and in two threads; their tensors are no arguments of one call.
fn two_devices(_: &Device) -> Outcome {
    let _alone = alone();
    let second = match Device::cuda(1) {
        Err(reason @ Error::NoDevice { .. }) => return Ok(Completion::ignored_with(reason)),
        device => device?,
    };
    let devices = [Device::cuda(0)?, second];
    let calls = devices
        .each_ref()
        .map(|device| Call::new(device, Kind::Plain, 1));
    let [first, second] = calls;
    let calls = [first?, second?];
    let expected = calls[0].expected(&devices[0])?;
    for _ in 0..5 {
        for (device, call) in devices.iter().zip(&calls) {
            assert_eq!(call.expected(device)?, expected);
        }
    }
    thread::scope(|scope| {
        let of_thread = |(device, call): (&Device, &Call)| -> Result<bool, Error> {
            let mut are_alike = true;
            for _ in 0..50 {
                are_alike &= call.expected(device)? == expected;
            }
            Ok(are_alike)
        };
        let threads: Vec<_> = devices
            .iter()
            .zip(&calls)
            .map(|both| scope.spawn(move || of_thread(both)))
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic")?);
        }
        Ok::<(), Error>(())
    })?;
    let [q, k] = devices
        .each_ref()
        .map(|device| Tensor::<f32>::zeros(device, [1, 1, 5, 8]));
    let (q, k) = (q?, k?);
    let mixed = ferroattn::Attention::new().forward(&q, &k, &q);
    assert!(matches!(
        mixed,
        Err(Error::DeviceMismatch { argument: "k", .. })
    ));
    PASSED
}
