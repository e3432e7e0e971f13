//! A launch: a kernel, its arguments, a grid of blocks.

use crate::counters::{Counters, Line};
use crate::error::Error;
use crate::grid;
use crate::kernel::{Kernel, ParameterType};
use crate::memory::Memory;
use crate::setting::{Options, Setting};
use crate::shared::MAX_CLOCK;

/// The most blocks of a cluster, which Hopper has for kernels that ask; else 8.
const MOST_OF_A_CLUSTER: u32 = 16;

/// A value for a kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<'a> {
    /// For a 32-bit scalar.
    U32(u32),
    /// For a 64-bit scalar, such as an address.
    U64(u64),
    /// For an `f32`.
    F32(f32),
    /// For a structure passed by value: its bytes.
    Bytes(&'a [u8]),
}

impl Argument<'_> {
    fn kind(&self) -> ParameterType {
        match self {
            Argument::U32(_) | Argument::F32(_) => ParameterType::Scalar(4),
            Argument::U64(_) => ParameterType::Scalar(8),
            Argument::Bytes(bytes) => ParameterType::Bytes(bytes.len() as u32),
        }
    }

    fn write(&self, to: &mut [u8]) {
        match self {
            Argument::U32(value) => to.copy_from_slice(&value.to_le_bytes()),
            Argument::U64(value) => to.copy_from_slice(&value.to_le_bytes()),
            Argument::F32(value) => to.copy_from_slice(&value.to_le_bytes()),
            Argument::Bytes(bytes) => to.copy_from_slice(bytes),
        }
    }
}

/// Runs a kernel over `grid` blocks of `block` threads, with `shared_bytes` bytes of dynamic shared
/// memory for each, and returns when all have ended. Blocks run in parallel. Blocks of a kernel with atomics, reductions
/// or sleeps take turns, in an order drawn from the seed.
///
/// ```
/// use emulator::{Argument, Memory, Module, Options, launch};
///
/// let text = "
///     .version 7.0
///     .target sm_80
///     .address_size 64
///     .visible .entry double(.param .u64 values)
///     {
///         .reg .b32 %r<3>;
///         .reg .b64 %rd<4>;
///         ld.param.u64 %rd1, [values];
///         mov.u32 %r1, %tid.x;
///         mul.wide.u32 %rd2, %r1, 4;
///         add.s64 %rd3, %rd1, %rd2;
///         ld.global.u32 %r2, [%rd3];
///         add.s32 %r2, %r2, %r2;
///         st.global.u32 [%rd3], %r2;
///         ret;
///     }";
/// let module = Module::parse(text, "double.ptx")?;
/// let memory = Memory::new();
/// let values = memory.allocate(8);
/// memory.write(values, &[3, 0, 0, 0, 5, 0, 0, 0])?;
/// let arguments = [Argument::U64(values)];
/// launch(&memory, module.entry("double")?, [1, 1, 1], [2, 1, 1], 0, &arguments, &Options::default())?;
/// let mut bytes = [0; 8];
/// memory.read(values, &mut bytes)?;
/// assert_eq!(bytes, [6, 0, 0, 0, 10, 0, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the arguments do not fit the kernel's parameters, if a size is not possible, or if a block
/// breaks a [rule](crate::Rule). Where several blocks do, one of them is reported.
pub fn launch(
    memory: &Memory,
    kernel: &Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: &[Argument],
    options: &Options,
) -> Result<Counters, Error> {
    let parameters = argument_block(kernel, arguments)?;
    let setting = |global, early| Setting {
        global,
        early,
        parameters: parameters.clone(),
        grid,
        block,
        shared_bytes: kernel.static_shared.saturating_add(shared_bytes),
        options: *options,
    };
    let (global, early) = memory.of_launch(kernel.waits_itself);
    let early = early.map(|global| Box::new(setting(global, None)));
    let launch = setting(global, early);
    check_sizes(kernel, &launch)?;
    let tallies = if kernel.blocks_meet {
        grid::interleaved(kernel, &launch)?
    } else {
        grid::in_parallel(kernel, &launch)?
    };
    let executed = kernel
        .instructions
        .iter()
        .zip(tallies)
        .filter(|(_, tally)| tally.executed > 0);
    let lines = executed.map(|(instruction, tally)| Line {
        line: instruction.line,
        opcode: instruction.opcode.clone(),
        source: kernel.files.source(instruction.location),
        tally,
    });
    Ok(Counters {
        lines: lines.collect(),
    })
}

/// The argument block that the kernel's `ld.param` reads.
fn argument_block(kernel: &Kernel, arguments: &[Argument]) -> Result<Vec<u8>, Error> {
    let parameters = kernel.parameters();
    if arguments.len() != parameters.len() {
        return Err(Error::ArgumentCount {
            kernel: kernel.name.clone(),
            expected: parameters.len(),
            found: arguments.len(),
        });
    }
    let mut bytes = Vec::new();
    for (parameter, argument) in parameters.iter().zip(arguments) {
        if parameter.kind != argument.kind() {
            let describe = |kind| match kind {
                ParameterType::Scalar(bytes) => format!("a scalar of {bytes} bytes"),
                ParameterType::Bytes(bytes) => format!("a structure of {bytes} bytes"),
            };
            return Err(Error::ArgumentType {
                kernel: kernel.name.clone(),
                parameter: parameter.name.clone(),
                expected: describe(parameter.kind),
                found: describe(argument.kind()),
            });
        }
        let start = parameter.offset as usize;
        bytes.resize(start + parameter.kind.size() as usize, 0);
        argument.write(&mut bytes[start..]);
    }
    Ok(bytes)
}

fn check_sizes(kernel: &Kernel, launch: &Setting) -> Result<(), Error> {
    let check = |what, fits: bool, allowed: String, found: String| {
        let kernel = kernel.name.clone();
        (fits.then_some(())).ok_or(Error::LaunchSize {
            kernel,
            what,
            allowed,
            found,
        })
    };
    let [x, y, z] = launch.grid;
    let fits =
        x > 0 && x <= i32::MAX as u32 && (1..=65535).contains(&y) && (1..=65535).contains(&z);
    let allowed = "1 to 2147483647 by 1 to 65535 by 1 to 65535 blocks".to_owned();
    check("the grid", fits, allowed, format!("{x} by {y} by {z}"))?;
    let cluster = launch.options.cluster;
    let fits = (1..=MOST_OF_A_CLUSTER).contains(&cluster) && x.is_multiple_of(cluster);
    let allowed = format!("1 to {MOST_OF_A_CLUSTER} blocks, and a grid of whole ones");
    check(
        "the cluster",
        fits,
        allowed,
        format!("{cluster} of {x} blocks"),
    )?;
    let most = kernel.max_threads.unwrap_or(1024).min(1024);
    let [x, y, z] = launch.block;
    let threads = launch
        .block
        .iter()
        .try_fold(1_u32, |product, n| product.checked_mul(*n));
    let fits = threads.is_some_and(|threads| (1..=most).contains(&threads)) && z <= 64;
    let allowed = format!("1 to {most} threads, at most 64 deep");
    check("the block", fits, allowed, format!("{x} by {y} by {z}"))?;
    let shared = launch.shared_bytes;
    let most = launch.options.max_shared_bytes;
    let allowed = format!("at most {most} bytes");
    check("shared memory", shared <= most, allowed, shared.to_string())?;
    let budget = launch.options.instruction_budget;
    let allowed = format!("1 to {}", MAX_CLOCK - 1);
    let fits = budget > 0 && budget < u64::from(MAX_CLOCK);
    check("the instruction budget", fits, allowed, budget.to_string())
}
