//! Classes of devices, told apart by their shared memory and generation: what decides tiles.
//!
//! Shared memory bounds a tile: two thread blocks should fit a multiprocessor, else one of twice the warps. Registers come
//! next: the assembler needs more for newer devices, and no tile may spill. Only the tiles of [`Class::Sm90`] were measured,
//! on an H200; the others are reasoned from the devices' limits.

/// Shared memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// The most that a block can have, if it asks for it.
    pub block: u32,
    /// The most that the blocks on a multiprocessor have together.
    pub multiprocessor: u32,
}

impl SharedMemory {
    /// Bytes of each block that the system takes.
    const RESERVED: u32 = 1 << 10;

    /// Blocks with so many bytes each that a multiprocessor holds.
    pub const fn resident_blocks(&self, bytes: u32) -> u32 {
        if bytes > self.block {
            return 0;
        }
        self.multiprocessor / bytes.saturating_add(Self::RESERVED)
    }
}

/// Devices with the same tiles, named after the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Devices like an A100.
    Sm80,
    /// GPUs for workstations and games from compute capability 8.6 on.
    Sm86,
    /// Devices like an H100.
    Sm90,
    /// Devices like a B200: the shared memory of an H100, but the assembler allocates registers worse.
    Sm100,
}

impl Class {
    /// Every class, that with the least shared memory first; of equals the oldest.
    pub const ALL: &[Class] = &[Class::Sm86, Class::Sm80, Class::Sm90, Class::Sm100];

    /// The name of its first target, on the command line too.
    pub const fn name(self) -> &'static str {
        self.targets()[0]
    }

    /// Its targets, the compute capability of its first devices, and the shared memory of their multiprocessors.
    const fn facts(self) -> (&'static [&'static str], (i32, i32), u32) {
        match self {
            Class::Sm80 => (&["sm_80"], (8, 0), 164 << 10),
            Class::Sm86 => (&["sm_86", "sm_89", "sm_120"], (8, 6), 100 << 10),
            Class::Sm90 => (&["sm_90"], (9, 0), 228 << 10),
            Class::Sm100 => (&["sm_100"], (10, 0), 228 << 10),
        }
    }

    /// The targets, by their names for `ptxas`, that are of this class.
    pub const fn targets(self) -> &'static [&'static str] {
        self.facts().0
    }

    /// The class of a target.
    pub fn named(target: &str) -> Option<Class> {
        let is_of = |class: &&Class| class.targets().contains(&target);
        Self::ALL.iter().find(is_of).copied()
    }

    /// The compute capability of its first devices.
    pub const fn compute_capability(self) -> (i32, i32) {
        self.facts().1
    }

    /// The shared memory of its devices.
    pub const fn shared_memory(self) -> SharedMemory {
        let multiprocessor = self.facts().2;
        SharedMemory {
            block: multiprocessor - SharedMemory::RESERVED,
            multiprocessor,
        }
    }

    /// The class whose tiles suit a device. Among classes with no more shared memory than the device, and no newer, it has
    /// the most shared memory, and is the newest of equals; where there is none, it is the class with the least.
    pub fn of(compute_capability: (i32, i32), device: SharedMemory) -> Class {
        let fits = |class: &&Class| {
            let needed = class.shared_memory();
            needed.block <= device.block
                && needed.multiprocessor <= device.multiprocessor
                && class.compute_capability() <= compute_capability
        };
        *Self::ALL.iter().rfind(fits).unwrap_or(&Self::ALL[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cost_what_the_system_reserves() {
        let shared = Class::Sm86.shared_memory();
        for (bytes, blocks) in [(49 << 10, 2), (99 << 10, 1)] {
            assert_eq!(shared.resident_blocks(bytes), blocks);
            assert_eq!(shared.resident_blocks(bytes + 1), blocks - 1);
        }
        assert_eq!(shared.resident_blocks(0), 100);
    }

    #[test]
    fn devices_are_told_apart_by_shared_memory_and_generation() {
        let of = |compute_capability, block: u32, multiprocessor: u32| {
            let shared = SharedMemory {
                block: block << 10,
                multiprocessor: multiprocessor << 10,
            };
            Class::of(compute_capability, shared)
        };
        for &class in Class::ALL {
            let shared = class.shared_memory();
            assert_eq!(Class::of(class.compute_capability(), shared), class);
        }
        // Others of the same generation, and what is not known yet.
        assert_eq!(of((8, 7), 163, 164), Class::Sm80);
        assert_eq!(of((12, 0), 99, 100), Class::Sm86);
        assert_eq!(of((10, 3), 227, 228), Class::Sm100);
        assert_eq!(of((13, 0), 300, 400), Class::Sm100);
        assert_eq!(of((9, 9), 300, 400), Class::Sm90);
        // More than one and less than the next, or more in one respect only.
        assert_eq!(of((9, 0), 200, 201), Class::Sm80);
        assert_eq!(of((9, 0), 128, 129), Class::Sm86);
        assert_eq!(of((10, 0), 99, 228), Class::Sm86);
        assert_eq!(of((10, 0), 227, 164), Class::Sm80);
        // Older than all that it has room for, and less than all.
        assert_eq!(of((8, 0), 99, 100), Class::Sm86);
        assert_eq!(of((9, 0), 48, 64), Class::Sm86);
    }

    #[test]
    fn every_target_has_one_class() {
        let targets = Class::ALL.iter().flat_map(|class| class.targets());
        let mut targets: Vec<_> = targets.collect();
        targets.sort_unstable();
        let expected = ["sm_100", "sm_120", "sm_80", "sm_86", "sm_89", "sm_90"];
        assert!(targets.into_iter().eq(&expected));
    }
}
