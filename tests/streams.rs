//! Calls in memory of the caller, on streams, in graphs, from threads and on two devices: all have the bits of a plain call.

mod call;
mod gpu;

use call::{Call, KINDS};
use ferroattn::{Attention, Device, Error, RawWorkspace, Tensor, f16};
use std::ptr::null_mut;
use tests::{Outcome, PASSED, Test};

pub fn tests() -> Vec<Test> {
    let everywhere = vec![
        Test::new("workspaces_of_the_caller", workspaces),
        Test::new("safe_calls", safe_calls),
    ];
    everywhere.into_iter().chain(gpu::tests()).collect()
}

/// Bytes before and after a workspace.
const MARGIN: usize = 4096;
/// Each byte of a workspace before a call.
const POISON: u8 = 0xff;

/// Workspaces of the bytes that plans say, no byte more, in memory that holds other numbers before.
fn workspaces(device: &Device) -> Outcome {
    for kind in KINDS {
        let mut call = Call::new(device, kind, 1)?;
        let expected = call.expected(device)?;
        let plans = call.plans(device)?;
        let bytes = plans.each_ref().map(|plan| plan.workspace_bytes);
        let most = bytes[0].max(bytes[1]);
        let memory = vec![POISON; 2 * MARGIN + most];
        let mut memory = Tensor::new(device, [memory.len()], &memory)?;
        let workspace = RawWorkspace {
            address: memory.as_raw_mut().address + MARGIN as u64,
            bytes: most,
        };
        call.poison(device)?;
        // SAFETY: tensors and workspace live until the bits are read.
        unsafe { call.queue_in(device, workspace, null_mut())? };
        assert_eq!(call.bits()?, expected, "{kind:?}");
        let memory = memory.to_vec()?;
        let (before, rest) = memory.split_at(MARGIN);
        let margins = before.iter().chain(&rest[most..]);
        assert!(margins.copied().all(|byte| byte == POISON), "{kind:?}");

        call.poison(device)?;
        for (pass, needed) in bytes
            .into_iter()
            .enumerate()
            .filter(|(_, bytes)| *bytes > 0)
        {
            let wrong = [
                RawWorkspace {
                    bytes: needed - 1,
                    ..workspace
                },
                RawWorkspace {
                    address: workspace.address + 8,
                    ..workspace
                },
            ];
            let found = needed - 1;
            let errors = [
                Error::Workspace { needed, found },
                Error::WorkspaceAddress(workspace.address + 8),
            ];
            for (workspace, error) in wrong.into_iter().zip(errors) {
                // SAFETY: refused calls touch nothing.
                let refused = unsafe { call.queue_pass(device, pass, workspace, null_mut()) };
                assert_eq!(refused, Err(error), "{kind:?}");
            }
        }
        assert!(call.is_poisoned()?, "{kind:?}");
    }
    PASSED
}

/// Two streams with a call each, and one after both, whose results are read without waiting.
fn safe_calls(device: &Device) -> Outcome {
    let shape = [2, 4, 200, 64];
    let random = |seed: usize| -> ferroattn::Result<Tensor<f16>> {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 500.0 - 1.0;
        let data: Vec<f16> = (0..2 * 4 * 200 * 64)
            .map(|i| f16::from_f32(number(i)))
            .collect();
        Tensor::new(device, shape, &data)
    };
    let [q, k, v] = [random(1)?, random(2)?, random(3)?];
    let (plain, causal) = (Attention::new(), Attention::new().causal(true));
    let chain = |first: &Attention,
                 second: &Attention,
                 last: &Attention,
                 join: &dyn Fn() -> ferroattn::Result<()>| {
        let (a, _) = first.forward(&q, &k, &v)?;
        let (b, lse) = second.forward(&q, &k, &v)?;
        join()?;
        let (o, _) = last.forward(&a, &b, &v)?;
        let gradients = second.backward(&q, &k, &v, &b, &lse, &q)?;
        Ok::<_, Error>([o.to_vec()?, gradients.0.to_vec()?, gradients.2.to_vec()?])
    };
    let expected = chain(&plain, &causal, &plain, &|| Ok(()))?;
    let [first, second] = [device.stream()?, device.stream()?];
    for _ in 0..10 {
        let found = chain(
            &plain.clone().on(&first),
            &causal.clone().on(&second),
            &plain.clone().on(&second),
            &|| second.wait_for(&first.event()?),
        )?;
        assert!(found == expected);
    }
    first.synchronize()?;
    PASSED
}
