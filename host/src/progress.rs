//! A progress bar on standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::thread;
use std::time::Duration;

const DELAY: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);

/// A bar that appears after two seconds, on a terminal only.
pub struct Progress {
    pub bar: ProgressBar,
}

impl Progress {
    pub fn start() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let shown = bar.clone();
        let show = move || {
            thread::sleep(DELAY);
            if !shown.is_finished() {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(TICK);
            }
        };
        // Without the thread there is no bar, but all else works.
        drop(thread::Builder::new().spawn(show));
        Progress { bar }
    }

    /// Begins work of unknown length.
    pub fn stage(&self, what: &str) {
        self.begin(what, "{spinner} {msg} [{elapsed}]");
    }

    /// Begins work of `count` steps.
    pub fn steps(&self, what: &str, count: usize) {
        self.begin(what, "{spinner} {msg} {bar:30} {pos}/{len} [{elapsed}]");
        self.bar.set_length(count as u64);
        self.bar.set_position(0);
    }

    fn begin(&self, what: &str, template: &str) {
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.expect("a valid template"));
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
