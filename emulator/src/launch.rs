//! A launch: a kernel, its arguments, a grid of blocks.

use crate::counters::{Counters, Line};
use crate::error::Error;
use crate::grid;
use crate::memory::{Global, Memory};
use crate::module::{Kernel, ParameterType};
use crate::shared::MAX_CLOCK;

/// How to run a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the order in which the warps of a block take turns, and blocks that change the same numbers.
    pub seed: u64,
    /// Instructions that a warp may execute; at most 2^26 - 2, the default. A kernel that needs more
    /// breaks [`Rule::Budget`](crate::Rule::Budget).
    pub instruction_budget: u64,
    /// Whether to count wavefronts, sectors and bytes, which takes a quarter more time.
    pub counters: bool,
    /// Shared memory that a block can have, static and dynamic together, in bytes. The default is
    /// 227 KB, the most that any device has.
    pub max_shared_bytes: u32,
    /// Whether `wgmma` of FP8 with sums in f32 keeps 14 bits of each product, as Hopper does; off by default.
    pub truncated_fp8_sums: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            instruction_budget: u64::from(MAX_CLOCK) - 1,
            counters: false,
            max_shared_bytes: 227 << 10,
            truncated_fp8_sums: false,
        }
    }
}

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

/// The state that all blocks of a launch share.
pub(crate) struct Launch<'a> {
    pub kernel: &'a Kernel,
    pub global: Global,
    pub parameters: Vec<u8>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Static and dynamic.
    pub shared_bytes: u32,
    pub options: Options,
}

impl Launch<'_> {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
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
    let launch = Launch {
        kernel,
        global: memory.snapshot(),
        parameters: argument_block(kernel, arguments)?,
        grid,
        block,
        shared_bytes: kernel.static_shared.saturating_add(shared_bytes),
        options: *options,
    };
    check_sizes(&launch)?;
    let tallies = if kernel.blocks_meet {
        grid::interleaved(&launch)?
    } else {
        grid::in_parallel(&launch)?
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

fn check_sizes(launch: &Launch) -> Result<(), Error> {
    let kernel = launch.kernel;
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
