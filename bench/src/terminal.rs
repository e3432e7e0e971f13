//! Output on the terminal.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line. A closed pipe (`| head`) is no error.
pub fn print(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
