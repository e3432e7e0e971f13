//! Entry points.

/// Defines an entry point: `NAME(PARAMS) = KERNEL<TYPES; NUMBERS>`, or `NAME(PARAMS, maps) = ...` of a kernel that also takes
/// the generic address of its parameters. Numbers have their names for the reader, and for the builder's check of their order.
#[macro_export]
macro_rules! entry {
    ($name:ident($params:ty) = $($kernel:ident)::+<$($type:ty),*; $($number:ident = $value:literal),*>) => {
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(params: $params) {
            // SAFETY: the launch is the caller's promise.
            unsafe { $($kernel)::+::<$($type,)* $($value),*>(&params) }
        }
    };
    ($name:ident($params:ty, maps) = $($kernel:ident)::+<$($type:ty),*; $($number:ident = $value:literal),*>) => {
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(params: $params) {
            let maps: u64;
            // SAFETY: the address of the parameter, which the compiler names so, is a constant; the launch is the
            // caller's promise.
            unsafe {
                core::arch::asm!(
                    concat!(
                        "{{ .reg .b64 own; mov.b64 own, ", stringify!($name), "_param_0; ",
                        "cvta.param.u64 {}, own; }}"
                    ),
                    out(reg64) maps, options(nomem, nostack)
                );
                $($kernel)::+::<$($type,)* $($value),*>(&params, maps)
            }
        }
    };
}
