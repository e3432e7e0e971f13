//! Functions of one instruction, defined by its text and its registers.
//!
//! A value is one register, `(a: TYPE in CLASS)`, or an array of several, `[a b: TYPE in CLASS; 2]`.

/// Defines functions that read a value from an address, with what their callers must promise.
macro_rules! loads {
    ($address:ident in $from:ident, $promise:literal;
        $($(#[$doc:meta])* $name:ident = $text:literal $value:tt;)*) => {
        $(loads!(@ [$(#[$doc])* #[doc = $promise]] $name($address in $from) = $text, $value);)*
    };
    (@ $doc:tt $name:ident $from:tt = $text:literal, ($a:ident: $type:ident in $class:ident)) => {
        loads!(@ $doc $name $from = $text, $a: $type, $a: $type in $class);
    };
    (@ $doc:tt $name:ident $from:tt = $text:literal, [$($a:ident)+: $type:ident in $class:ident; $count:literal]) => {
        loads!(@ $doc $name $from = $text, [$($a),+]: [$type; $count], $($a)+: $type in $class);
    };
    (@ [$($doc:tt)*] $name:ident($address:ident in $from:ident) = $text:literal,
        $value:tt: $result:ty, $($a:ident)+: $type:ident in $class:ident) => {
        $($doc)*
        #[inline(always)]
        pub unsafe fn $name(address: $address) -> $result {
            $(let $a: $type;)+
            // SAFETY: the caller's promise.
            unsafe { asm!($text, $(out($class) $a,)+ in($from) address, options(nostack)) }
            $value
        }
    };
}

/// Defines functions that write a value to an address, with what their callers must promise.
macro_rules! stores {
    ($address:ident in $to:ident, $promise:literal;
        $($(#[$doc:meta])* $name:ident = $text:literal $value:tt;)*) => {
        $(stores!(@ [$(#[$doc])* #[doc = $promise]] $name($address in $to) = $text, $value);)*
    };
    (@ $doc:tt $name:ident $to:tt = $text:literal, ($a:ident: $type:ident in $class:ident)) => {
        stores!(@ $doc $name $to = $text, $a: $type, $a: $type in $class);
    };
    (@ $doc:tt $name:ident $to:tt = $text:literal, [$($a:ident)+: $type:ident in $class:ident; $count:literal]) => {
        stores!(@ $doc $name $to = $text, [$($a),+]: [$type; $count], $($a)+: $type in $class);
    };
    (@ [$($doc:tt)*] $name:ident($address:ident in $to:ident) = $text:literal,
        $value:tt: $given:ty, $($a:ident)+: $type:ident in $class:ident) => {
        $($doc)*
        #[inline(always)]
        pub unsafe fn $name(address: $address, $value: $given) {
            // SAFETY: the caller's promise.
            unsafe { asm!($text, in($to) address, $(in($class) $a,)+ options(nostack)) }
        }
    };
}

/// Defines functions of registers alone, which the compiler may move freely.
macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident($($x:ident: $type:ident in $class:ident),+) -> $result:ident = $text:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name($($x: $type),+) -> $result {
            let result: $result;
            // SAFETY: arithmetic on registers.
            unsafe { asm!($text, out(reg32) result, $(in($class) $x,)+ options(pure, nomem, nostack)) }
            result
        }
    )*};
}

/// Defines functions of an instruction that only its callers can make sound: the docs say what they promise.
macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident$(<$n:ident>)?($($x:ident: $type:ident in $class:ident),*)
        $(-> $result:ident: $returned:ident)? = $($text:literal)+;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name$(<const $n: u32>)?($($x: $type),*) $(-> $returned)? {
            $(let $result: $returned;)?
            // SAFETY: the caller's promise.
            unsafe {
                asm!($($text,)+ $(out(reg32) $result,)? $(in($class) $x,)* $(const $n,)? options(nostack));
            }
            $($result)?
        }
    )*};
}
