//! A peer: a child process that times other implementations on the same GPU.

use crate::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The message of an error if the child has ended.
const ENDED: &str = "the peer ended without an answer";

/// A child process that times its contenders on command; `protocol.py` says how it speaks.
pub struct Peer {
    command: Command,
    process: Process,
    introduction: Introduction,
}

/// The child and its pipes.
struct Process {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// The child's first line.
#[derive(Deserialize)]
struct Introduction {
    contenders: Vec<String>,
    versions: BTreeMap<String, String>,
}

impl Peer {
    /// Starts the child.
    ///
    /// # Errors
    /// If there is no such program, or it says why it cannot run.
    pub fn start(mut command: Command) -> Result<Self> {
        let (process, introduction) = Process::start(&mut command)?;
        Ok(Peer {
            command,
            process,
            introduction,
        })
    }

    /// Names of the contenders.
    pub fn contenders(&self) -> &[String] {
        &self.introduction.contenders
    }

    /// Version of each program and library that the child uses.
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.introduction.versions
    }

    /// Draws inputs of a shape. Returns the contenders that do not serve it, with their reasons.
    ///
    /// A child that has ended is started again: some errors of a GPU are the end of a process.
    pub fn setup<S: Subject>(&mut self, shape: &S, seed: u64) -> Result<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        struct Ready {
            refusals: BTreeMap<String, String>,
        }
        let mut setup = shape.setup()?;
        setup["seed"] = json!(seed);
        let command = json!({ "setup": setup });
        if let Some(Ready { refusals }) = self.process.ask(&command)? {
            return Ok(refusals);
        }
        (self.process, self.introduction) = Process::start(&mut self.command)?;
        let Ready { refusals } = self.process.ask(&command)?.context(ENDED)?;
        Ok(refusals)
    }

    /// The GPU's milliseconds for each of `iters` launches, after `lead` that are not timed.
    pub fn time(&mut self, contender: &str, lead: usize, iters: usize) -> Result<Vec<f64>> {
        #[derive(Deserialize)]
        struct Times {
            ms: Vec<f64>,
        }
        let command = json!({ "time": { "contender": contender, "lead": lead, "iters": iters } });
        let Times { ms } = self.process.ask(&command)?.context(ENDED)?;
        ensure!(
            ms.len() == iters,
            "{contender}: {} times for {iters}",
            ms.len()
        );
        Ok(ms)
    }
}

impl Process {
    /// Starts the child and reads its introduction.
    fn start(command: &mut Command) -> Result<(Self, Introduction)> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let commands = child.stdin.take();
        let answers = child.stdout.take().context("no standard output")?;
        let mut process = Process {
            child,
            commands,
            answers: BufReader::new(answers),
        };
        let introduction = process.answer().context(program)?;
        Ok((process, introduction.context(ENDED)?))
    }

    /// The child's answer, or `None` if it has ended.
    fn ask<T: DeserializeOwned>(&mut self, command: &Value) -> Result<Option<T>> {
        let commands = self.commands.as_mut().context("the peer has ended")?;
        // If the child has ended, its answer is missing.
        let _ = writeln!(commands, "{command}");
        self.answer()
    }

    /// Reads one line: an answer, or `{"error": ...}`; `None` at the end.
    fn answer<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let answer: Value = serde_json::from_str(&line)
            .with_context(|| format!("not an answer of the peer: {}", line.trim_end()))?;
        if let Some(error) = answer.get("error") {
            bail!("{}", error.as_str().unwrap_or("an error without words"));
        }
        serde_json::from_value(answer)
            .with_context(|| format!("not an answer to the question: {}", line.trim_end()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends the child.
        self.commands = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
pub mod tests {
    use super::Peer;
    use crate::grid::Grid;
    use std::process::Command;

    /// Serves every shape with one of its two contenders, two launches a turn: one and three milliseconds.
    const FAKE: &str = r#"
        echo '{"contenders": ["SDPA flash", "picky"], "versions": {"fake": "1"}}'
        while read -r line; do
            case "$line" in
                *setup*) echo '{"refusals": {"picky": "no kernel"}}' ;;
                *'"iters":0'*) echo '{"ms": []}' ;;
                *'"SDPA flash"'*) echo '{"ms": [1.0, 3.0]}' ;;
                *die*) exit 1 ;;
                *) echo '{"error": "who?"}' ;;
            esac
        done"#;

    pub fn fake() -> Peer {
        start(FAKE).expect("a shell")
    }

    pub fn start(script: &str) -> anyhow::Result<Peer> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Peer::start(command)
    }

    #[test]
    fn commands_are_answered_in_turn() {
        let mut peer = fake();
        assert_eq!(peer.contenders(), ["SDPA flash", "picky"]);
        assert_eq!(peer.versions()["fake"], "1");
        for shape in Grid::Quick.shapes().expect("shapes") {
            let refusals = peer.setup(&shape, 0).expect("an answer");
            assert_eq!(refusals["picky"], "no kernel");
            let times = peer.time("SDPA flash", 1, 2).expect("an answer");
            assert_eq!(times, [1.0, 3.0]);
        }
    }

    #[test]
    fn what_goes_wrong_is_said() {
        let mut peer = fake();
        let mut said = |contender, iters| {
            let error = peer.time(contender, 0, iters).expect_err("no times");
            format!("{error:#}")
        };
        assert_eq!(said("SDPA flash", 5), "SDPA flash: 2 times for 5");
        assert_eq!(said("nobody", 2), "who?");
        assert_eq!(said("die", 2), "the peer ended without an answer");
        assert_eq!(said("SDPA flash", 2), "the peer ended without an answer");

        let shapes = Grid::Quick.shapes().expect("shapes");
        let refusals = peer.setup(&shapes[0], 0).expect("another child");
        assert_eq!(refusals["picky"], "no kernel");
        assert!(peer.time("SDPA flash", 1, 2).is_ok());

        let refused = |script| format!("{:#}", start(script).err().expect("no peer"));
        let error = refused(r#"echo '{"error": "No module named torch"}'"#);
        assert_eq!(error, "sh: No module named torch");
        assert!(refused("echo hello").contains("not an answer of the peer: hello"));
        assert!(refused("echo '{}'").contains("not an answer to the question: {}"));
        let missing = Peer::start(Command::new("no-such-program"));
        let error = missing.err().expect("no peer");
        assert!(format!("{error:#}").starts_with("cannot run no-such-program"));
    }
}
