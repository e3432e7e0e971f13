//! Documents with a distance bias, forward and backward, on a GPU if there is one and on the CPU if not, checked.

use custom_score::Batch;
use custom_score::checked::Passes;
use ferroattn::{Device, Element, Result, alibi_slopes, bf16, f16};

/// Lengths of the documents of two batch entries, of 1024 tokens each.
const ENTRIES: [&[u32]; 2] = [&[300, 1, 423, 300], &[1000, 24]];
const HEADS: usize = 4;
const KV_HEADS: usize = 2;

fn main() -> Result<()> {
    let device = Device::cuda(0).unwrap_or_else(|reason| {
        println!("{reason}");
        Device::cpu()
    });
    println!("documents {ENTRIES:?}, {HEADS} heads, on {}", device.name());
    let mut passed = true;
    for dim in [64, 128] {
        passed &= run::<f16>(&device, dim)?;
        passed &= run::<bf16>(&device, dim)?;
    }
    std::process::exit(i32::from(!passed))
}

/// Computes and checks both passes, and says whether they passed.
fn run<T: Element>(device: &Device, dim: usize) -> Result<bool> {
    let slopes = alibi_slopes(HEADS);
    let tokens = ENTRIES[0].iter().sum::<u32>() as usize;
    let shape = [ENTRIES.len(), HEADS, tokens, dim];

    let batch = Batch::new(device, &ENTRIES, &slopes)?;
    // SAFETY: the shape has as many entries and tokens.
    let call = unsafe { batch.attention() };
    let passes = Passes::<T>::compute(device, &call, shape, KV_HEADS, |_| ())?;

    let on_host = Batch::new(&Device::cpu(), &ENTRIES, &slopes)?;
    // SAFETY: as above.
    let options = unsafe { on_host.attention() }.host_options(&passes.problem)?;
    let (forward, backward) = passes.check(options);
    println!("{} of dim {dim}, forward:  {forward}", T::DTYPE.name());
    println!("{} of dim {dim}, backward: {backward}", T::DTYPE.name());
    Ok(forward.passed() && backward.passed())
}
