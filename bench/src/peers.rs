//! Other implementations, each timed by a script of Python in a process of its own on the same GPU.

use crate::peer::Peer;
use crate::subject::Subject;
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::process::Command;
use tempfile::TempDir;

/// The scripts, which import one another.
const SCRIPTS: [(&str, &str); 5] = [
    ("protocol.py", include_str!("../peers/protocol.py")),
    ("cached.py", include_str!("../peers/cached.py")),
    ("torch_peer.py", include_str!("../peers/torch_peer.py")),
    (
        "flashinfer_peer.py",
        include_str!("../peers/flashinfer_peer.py"),
    ),
    ("fa3_peer.py", include_str!("../peers/fa3_peer.py")),
];

/// Other implementations of attention and of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerName {
    /// PyTorch: `scaled_dot_product_attention` with its flash, cuDNN and efficient back ends, beside calls with
    /// options `flex_attention`, compiled; for matrix products `matmul`, which calls cuBLAS
    Torch,
    /// `FlashInfer`, on caches in pages and in one piece; compiles its kernels with nvcc and ninja at their first call
    Flashinfer,
    /// `FlashAttention-3` of vLLM's wheel, on caches in pages and in one piece
    Fa3,
}

impl PeerName {
    fn name(self) -> &'static str {
        match self {
            PeerName::Torch => "torch",
            PeerName::Flashinfer => "flashinfer",
            PeerName::Fa3 => "fa3",
        }
    }

    fn script(self) -> String {
        format!("{}_peer.py", self.name())
    }

    /// Starts it in the Python that `PYTHON` names, or in `python3`.
    fn start(self, scripts: &TempDir, subject: &str) -> Result<Peer> {
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = Command::new(python);
        command.arg(scripts.path().join(self.script())).arg(subject);
        Peer::start(command)
    }
}

/// The peers of a run.
#[derive(Default)]
pub struct Peers {
    peers: Vec<Peer>,
    /// The folder of their scripts: a child that has ended is started again.
    _scripts: Option<TempDir>,
}

impl Peers {
    /// Starts the named peers, and says which do not run. `subject` names what they compute.
    ///
    /// # Errors
    /// If their scripts cannot be written.
    pub fn start(names: &[PeerName], subject: &str) -> Result<Self> {
        let scripts = tempfile::tempdir().context("no folder for the scripts of peers")?;
        for (name, text) in SCRIPTS {
            std::fs::write(scripts.path().join(name), text)?;
        }
        let start = |name: &PeerName| {
            let said = |error| eprintln!("no columns of {}: {error:#}", name.name());
            name.start(&scripts, subject).map_err(said).ok()
        };
        Ok(Peers {
            peers: names.iter().filter_map(start).collect(),
            _scripts: Some(scripts),
        })
    }

    /// Names of the contenders.
    pub fn contenders(&self) -> Vec<String> {
        let all = self.peers.iter().flat_map(Peer::contenders);
        all.cloned().collect()
    }

    /// Version of each program and library that the peers use.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let all = self.peers.iter().flat_map(Peer::versions);
        all.map(|(name, version)| (name.clone(), version.clone()))
            .collect()
    }

    /// Draws inputs of a shape. Returns the contenders that do not serve it, with their reasons.
    pub fn setup<S: Subject>(&mut self, shape: &S, seed: u64) -> BTreeMap<String, String> {
        let mut refusals = BTreeMap::new();
        for peer in &mut self.peers {
            refusals.extend(peer.setup(shape, seed).unwrap_or_else(|error| {
                let reason = format!("{error:#}");
                let all = peer.contenders().iter().cloned();
                all.map(|contender| (contender, reason.clone())).collect()
            }));
        }
        refusals
    }

    /// The GPU's milliseconds for each of `iters` launches, after `lead` that are not timed.
    ///
    /// # Errors
    /// If the contender fails.
    pub fn time(&mut self, contender: &str, lead: usize, iters: usize) -> Result<Vec<f64>> {
        let mut peers = self.peers.iter_mut();
        peers
            .find(|peer| peer.contenders().iter().any(|name| name == contender))
            .with_context(|| format!("no peer has {contender}"))?
            .time(contender, lead, iters)
    }
}

#[cfg(test)]
pub mod tests {
    use super::{PeerName, Peers, SCRIPTS};
    use crate::grid::Grid;
    use crate::peer::Peer;
    use crate::peer::tests::{fake, start};
    use clap::ValueEnum;

    pub fn of<const N: usize>(peers: [Peer; N]) -> Peers {
        Peers {
            peers: peers.into(),
            _scripts: None,
        }
    }

    #[test]
    fn contenders_of_all_peers_are_asked() {
        let other = r#"
            echo '{"contenders": ["slow"], "versions": {"other": "2"}}'
            while read -r line; do
                case "$line" in
                    *setup*) echo '{"error": "no memory"}' ;;
                    *) echo '{"ms": [9.0, 9.0]}' ;;
                esac
            done"#;
        let mut peers = of([fake(), start(other).expect("a shell")]);
        assert_eq!(peers.contenders(), ["SDPA flash", "picky", "slow"]);
        assert_eq!(peers.versions().len(), 2);
        let shapes = Grid::Quick.shapes().expect("shapes");
        let refusals = peers.setup(&shapes[0], 0);
        assert_eq!(refusals["picky"], "no kernel");
        assert_eq!(refusals["slow"], "no memory");
        assert_eq!(peers.time("slow", 0, 2).expect("times"), [9.0, 9.0]);
        assert_eq!(peers.time("SDPA flash", 0, 2).expect("times"), [1.0, 3.0]);
        assert!(peers.time("nobody", 0, 2).is_err());
    }

    #[test]
    fn each_name_has_a_script() {
        for name in PeerName::value_variants() {
            assert!(SCRIPTS.iter().any(|(script, _)| *script == name.script()));
        }
    }
}
