//! Entry points.

/// Defines an entry point: `NAME(PARAMS) = KERNEL`, or `NAME(PARAMS, maps) = KERNEL` of a kernel that also takes the
/// generic address of its parameters.
#[macro_export]
macro_rules! entry {
    ($name:ident($params:ty) = $kernel:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(params: $params) {
            // SAFETY: the launch is the caller's promise.
            unsafe { $kernel(&params) }
        }
    };
    ($name:ident($params:ty, maps) = $kernel:expr) => {
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
                $kernel(&params, maps)
            }
        }
    };
}
