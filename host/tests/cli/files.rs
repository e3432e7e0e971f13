//! Files that q, k and v come from and that o and lse go to.

use super::*;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::Duration;

/// A header and this many zeros after it.
fn raw(header: &str, zeros: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &vec![0; zeros]].concat()
}

/// A header with q, k and v, each of 16 bytes, and one more tensor.
fn header_with(other: &str) -> String {
    let tensor = |(i, name)| {
        let offsets = [16 * i, 16 * (i + 1)];
        format!(r#""{name}":{{"dtype":"F16","shape":[1,1,1,8],"data_offsets":{offsets:?}}}"#)
    };
    let tensors = ["q", "k", "v"].into_iter().enumerate().map(tensor);
    let tensors: Vec<_> = tensors.collect();
    format!("{{{}{other}}}", tensors.join(","))
}

#[test]
fn files_are_refused_by_their_header() {
    let folder = folder();
    let path = folder.path().join("bad.safetensors");
    let refuse_it = |reasons: &[&str]| {
        let line = format!("--input {}", path.display());
        refuse(&line, &[&["--input", "bad.safetensors"], reasons].concat());
    };
    refuse_it(&["No such file"]);

    let whole = fs::read(write_even_weights(&folder, Dtype::F16, f16::from_f32));
    let whole = whole.expect("the file just written");
    let other = |dtype: &str, shape: &str, offsets: &str| {
        let tensor = format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#);
        raw(&header_with(&format!(r#","other":{tensor}"#)), 48)
    };
    let twice = header_with("").replace(r#""k""#, r#""q""#);
    let again = r#","q":{"dtype":"F16","shape":[1,1,1,8],"data_offsets":[0,16]}"#;
    for (bytes, reason) in [
        (Vec::new(), "it ends before its header"),
        (whole[..7].to_vec(), "it ends before its header"),
        (whole[..50].to_vec(), "its header would have"),
        (whole[..whole.len() - 1].to_vec(), "its header tells of"),
        ([&whole[..], &[0]].concat(), "its header tells of"),
        (
            vec![b'x'; 100],
            "its header would have 8680820740569200760 bytes",
        ),
        (
            vec![255; 100],
            "its header would have 18446744073709551615 bytes",
        ),
        (vec![0; 100], "its header is wrong"),
        (raw("[]", 0), "an object of tensors"),
        (raw(&header_with(",\"o"), 48), "its header is wrong"),
        (raw(&twice, 48), "tensor \"q\" is there twice"),
        (raw(&header_with(again), 48), "tensor \"q\" is there twice"),
        (other("F17", "[0]", "[48, 48]"), "F17"),
        (other("F16", "[1]", "[48, 49]"), "invalid shape"),
        (other("F16", "[0]", "[40, 40]"), "invalid offset"),
        (other("F16", "[1]", "[50, 52]"), "invalid offset"),
        (other("F16", "[1]", "[48, 46]"), "invalid offset"),
        (
            other("U8", "[4294967296, 4294967296]", "[48, 48]"),
            "overflow",
        ),
        (
            other("U8", "[18446744073709551567]", "[48, 18446744073709551615]"),
            "overflow",
        ),
        (
            other("U8", "[2305843009213693900]", "[48, 2305843009213693948]"),
            "its header tells of",
        ),
    ] {
        fs::write(&path, bytes).expect("a writable folder");
        refuse_it(&["not a valid safetensors file", reason]);
    }
    // Even a name with line breaks makes one line.
    fs::write(
        &path,
        raw(
            r#"{"a\nb":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            0,
        ),
    )
    .expect("a writable folder");
    refuse_it(&["it has no tensor q; its tensors are: a b"]);
    // No end is in sight here.
    refuse("--input /dev/zero", &["/dev/zero", "its header is wrong"]);
    refuse("--input /", &["Is a directory"]);
}

/// All other bytes of a file are left alone, here 64 GiB.
#[test]
fn only_q_k_and_v_are_read() {
    let folder = folder();
    let path = folder.path().join("large.safetensors");
    let other = r#","other":{"dtype":"U8","shape":[68719476736],"data_offsets":[48,68719476784]}"#;
    let bytes = raw(&header_with(other), 48);
    fs::write(&path, &bytes).expect("a writable folder");
    let file = fs::OpenOptions::new().write(true).open(&path);
    let extended = file.and_then(|file| file.set_len(bytes.len() as u64 + (64 << 30)));
    extended.expect("a file with a hole");
    succeed(&format!("--input {}", path.display()));
}

fn fifo(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("mkfifo starts").success());
    path
}

#[test]
fn pipes_are_read() {
    let folder = folder();
    let whole = fs::read(write_even_weights(&folder, Dtype::F32, |x| x));
    let whole = whole.expect("the file just written");
    let pipe = fifo(&folder);
    let line = format!("--input {}", pipe.display());
    let send = |bytes: Vec<u8>| {
        let pipe = pipe.clone();
        thread::spawn(move || fs::write(pipe, bytes).expect("a reader"))
    };
    let sent = send(whole.clone());
    let table = succeed(&line);
    sent.join().expect("all was read");
    assert!(table.contains("heads 2, kv_heads 1, seqlen 3"), "{table}");
    let sent = send(whole[..whole.len() - 1].to_vec());
    refuse(&line, &["--input", "cannot read v", "fill whole buffer"]);
    sent.join().expect("all was read");
}

/// A file of zeros with these tensors is refused.
fn refuse_tensors(tensors: &[(&str, Dtype, &[usize])], reasons: &[&str]) {
    let folder = folder();
    let zeros = [0; 4096];
    let tensors: Vec<FileTensor> = tensors
        .iter()
        .map(|&(name, dtype, shape)| {
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (name, dtype, shape, &zeros[..bytes])
        })
        .collect();
    let path = write(&folder, &tensors);
    refuse(&format!("--input {}", path.display()), reasons);
}

#[test]
fn tensors() {
    use Dtype::{BF16, F16, F64, I16};
    let shape: &[usize] = &[1, 2, 3, 8];
    let absent = [("q", F16, shape), ("v", F16, shape)];
    refuse_tensors(&absent, &["--input", "no tensor k"]);
    for dtype in [F64, I16] {
        let foreign = [("q", F16, shape), ("k", F16, shape), ("v", dtype, shape)];
        refuse_tensors(&foreign, &["v is", "F16, BF16 or F32"]);
    }
    let mixed = [("q", F16, shape), ("k", BF16, shape), ("v", F16, shape)];
    refuse_tensors(&mixed, &["k is BF16", "F16"]);
}

#[test]
fn shapes() {
    let refuse_shapes = |q: &[usize], k: &[usize], v: &[usize], reasons: &[&str]| {
        refuse_tensors(
            &[
                ("q", Dtype::F16, q),
                ("k", Dtype::F16, k),
                ("v", Dtype::F16, v),
            ],
            reasons,
        );
    };
    let shape = [1, 2, 3, 8];
    refuse_shapes(
        &shape,
        &[2, 3, 8],
        &shape,
        &["k has shape [2, 3, 8]", "[batch, heads"],
    );
    refuse_shapes(
        &shape,
        &shape,
        &[1, 2, 4, 8],
        &["v has shape [1, 2, 4, 8]", "[1, 2, 3, 8]"],
    );
    for other in [[2, 2, 3, 8], [1, 2, 3, 16]] {
        refuse_shapes(&shape, &other, &other, &["k has shape", "[1, 2, 3, 8]"]);
    }
    refuse_shapes(&[1, 3, 3, 8], &shape, &shape, &["heads is 3", "kv_heads"]);
    let wide = [1, 1, 1, 1025];
    refuse_shapes(&wide, &wide, &wide, &["dim is 1025"]);
    let reasons = ["inputs.safetensors: seqlen_q is 0"];
    refuse_shapes(&[1, 2, 0, 8], &shape, &shape, &reasons);
}

#[test]
fn nan_and_infinity_are_computed_and_counted() {
    let folder = folder();
    let data = |not_finite: &[(usize, f16)]| -> Vec<f16> {
        let mut data: Vec<_> = (0..80).map(|i| f16::from_f32((i % 7) as f32)).collect();
        for &(i, number) in not_finite {
            data[i] = number;
        }
        data
    };
    let (nan, infinity) = (f16::NAN, f16::INFINITY);
    let q = data(&[(3, nan), (7, -infinity), (17, infinity)]);
    let (k, v) = (data(&[]), data(&[(79, nan)]));
    let tensors = [("q", &q), ("k", &k), ("v", &v)].map(|(name, data)| {
        let shape = &[1, 1, 10, 8][..];
        (name, Dtype::F16, shape, bytemuck::cast_slice(data))
    });
    let input = write(&folder, &tensors);
    for causal in ["", "--causal"] {
        let line = format!("--json --input {} --check full {causal}", input.display());
        let finished = run_on_cpu(&line);
        assert_eq!(finished.status, Some(0), "{}", finished.stderr);
        let note = "note: rows with NaN or infinity, as f16: 2 of q, 0 of k, 1 of v\n";
        assert_eq!(finished.stderr, note);
        assert_eq!(outcome(&finished.stdout)["passed"], true);
    }
}

/// A number that is finite in the file may be too large for f16.
#[test]
fn numbers_that_become_infinite_are_counted() {
    let folder = folder();
    let large = write_even_weights(&folder, Dtype::F32, |x| 40_000.0 * x);
    let finished = run_on_cpu(&format!("--input {}", large.display()));
    let note = "note: rows with NaN or infinity, as f16: 0 of q, 0 of k, 2 of v\n";
    assert_eq!(finished.stderr, note);
    let line = format!("--dtype bf16 --input {}", large.display());
    assert_eq!(run_on_cpu(&line).stderr, "");
}

#[test]
fn outputs() {
    let folder = folder();
    let refuse_output = |path: &Path, reason: &str| {
        refuse(
            &format!("--output {}", path.display()),
            &["--output", reason],
        );
    };
    refuse_output(&folder.path().join("missing/o"), "missing/o: No such file");
    refuse_output(&folder.path().join("new/"), "new/: invalid filename");
    refuse_output(folder.path(), "is a folder");
    assert_eq!(file_names(&folder), [""; 0]);
    let circle = folder.path().join("circle");
    symlink("circle", &circle).expect("a writable folder");
    refuse_output(&circle, "circle: Too many levels of symbolic links");
}

#[test]
fn a_refused_run_leaves_the_output_alone() {
    let folder = folder();
    let path = folder.path().join("o.safetensors");
    let line = format!("--output {} --kernel forward_f16_d64", path.display());
    refuse(&line, &["not on the CPU"]);
    assert_eq!(file_names(&folder), [""; 0]);
    fs::write(&path, "precious").expect("a writable folder");
    refuse(&line, &["not on the CPU"]);
    assert_eq!(fs::read(&path).expect("the file just written"), b"precious");
    assert_eq!(file_names(&folder), [OsStr::new("o.safetensors")]);
}

/// Runs with an output, which must succeed.
fn write_output(path: &Path) {
    succeed(&format!("--seqlen 64 --output {}", path.display()));
}

fn is_output(bytes: &[u8]) {
    let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
    assert_eq!(file.tensor("o").expect("o").shape(), [1, 8, 64, 64]);
}

#[test]
fn links_are_followed() {
    let folder = folder();
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).expect("a writable folder");
    let file = inside.join("file");
    // One link to another, which dangles at first; both are relative to where they lie.
    let [first, second] = ["first", "inside/second"].map(|name| folder.path().join(name));
    symlink("inside/second", &first).expect("a writable folder");
    symlink("file", &second).expect("a writable folder");
    for _ in 0..2 {
        write_output(&first);
        is_output(&fs::read(&file).expect("the output"));
        for link in [&first, &second] {
            assert!(link.symlink_metadata().expect("a link").is_symlink());
        }
        fs::write(&file, "older").expect("a writable folder");
    }
    assert_eq!(file_names(&folder).len(), 2);
    assert_eq!(fs::read_dir(&inside).expect("a folder").count(), 2);
}

#[test]
fn a_replaced_file_keeps_its_mode() {
    let folder = folder();
    let path = folder.path().join("o");
    fs::write(&path, "older").expect("a writable folder");
    let mode = |mode: u32| fs::Permissions::from_mode(0o100_000 | mode);
    fs::set_permissions(&path, mode(0o640)).expect("a file of this test's own");
    write_output(&path);
    is_output(&fs::read(&path).expect("the output"));
    let found = fs::metadata(&path).expect("the output").permissions();
    assert_eq!(found, mode(0o640));
    assert_eq!(file_names(&folder), [OsStr::new("o")]);
}

/// Pipes are written like devices, such as /dev/null.
#[test]
fn pipes_are_written_straight() {
    let folder = folder();
    let pipe = fifo(&folder);
    let link = folder.path().join("link");
    symlink("fifo", &link).expect("a writable folder");
    for path in [&pipe, &link] {
        let source = pipe.clone();
        let reader = thread::spawn(move || fs::read(source).expect("a writer"));
        write_output(path);
        is_output(&reader.join().expect("all was read"));
        let kind = fs::symlink_metadata(&pipe).expect("the pipe").file_type();
        assert!(kind.is_fifo());
    }
    let source = pipe.clone();
    let reader = thread::spawn(move || {
        let mut source = fs::File::open(source).expect("a writer");
        source.read_exact(&mut [0]).expect("a first byte");
    });
    let line = format!("--seqlen 2000 --iters 1 --output {}", pipe.display());
    refuse(&line, &["--output", "fifo: Broken pipe"]);
    reader.join().expect("a reader that leaves");
}

#[test]
fn the_input_is_no_output() {
    let folder = folder();
    let input = write_even_weights(&folder, Dtype::F16, f16::from_f32);
    let before = fs::read(&input).expect("the file just written");
    let [soft, hard] = ["soft", "hard"].map(|name| folder.path().join(name));
    symlink("inputs.safetensors", &soft).expect("a writable folder");
    fs::hard_link(&input, &hard).expect("a writable folder");
    let spelled = folder.path().join("./inputs.safetensors");
    for output in [&input, &soft, &hard, &spelled] {
        let (input, output) = (input.display(), output.display());
        let line = format!("--input {input} --output {output}");
        refuse(&line, &["--output", "is the file of --input"]);
    }
    assert_eq!(fs::read(&input).expect("the input"), before);
}

/// Where a file system has no nameless files, the output itself may be left unfinished.
fn has_nameless_files(folder: &TempDir) -> bool {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    let probe = folder.path().join("probe");
    let flags = OFlags::TMPFILE | OFlags::WRONLY;
    let linked = open(folder.path(), flags, Mode::RUSR).and_then(|file| {
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, nameless, CWD, &probe, AtFlags::SYMLINK_FOLLOW)
    });
    linked.is_ok() && fs::remove_file(&probe).is_ok()
}

/// Starts a run in the shell, with 16 MiB of output, after a command that limits it.
fn limited(limit: &str, output: &Path) -> Output {
    let run = r#"exec "$0" --device cpu --batch 8192 --heads 16 --seqlen 1 --check off --iters 1"#;
    let script = format!(r#"{limit}; {run} --output "$1""#);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(command().get_program());
    shell.arg(output).output().expect("sh starts")
}

#[test]
fn an_interrupted_write_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("o");
    let whole = has_nameless_files(&folder);
    for older in [None, Some("older")] {
        if let Some(older) = older {
            fs::write(&path, older).expect("a writable folder");
        }
        // The system ends the run where the file grows beyond the limit.
        let output = limited("ulimit -f 1000", &path);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.signal().is_some(), "{stderr}");
        // Ignored, the signal becomes an error; the message has the path that was typed.
        let output = finished(limited("trap '' XFSZ; ulimit -f 1000", &path));
        let reason = format!("cannot write {}: File too large", path.display());
        refused("a full disk", &output, &[&reason]);
        if whole {
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), older);
        }
        assert!(file_names(&folder).iter().all(|name| name == "o"));
        let _ = fs::remove_file(&path);
    }
}

#[test]
fn a_signal_leaves_nothing() {
    let folder = folder();
    let whole = has_nameless_files(&folder);
    let has_opened = |run: &Child| {
        let files = fs::read_dir(format!("/proc/{}/fd", run.id())).expect("a process");
        let mut paths = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        paths.any(|path| path.starts_with(folder.path()))
    };
    // Not INT, which a shell lets its background commands ignore: the run would not end.
    for signal in ["TERM", "KILL"] {
        let output = folder.path().join("o");
        let line = "--device cpu --seqlen 64 --iters 18446744073709551615 --output";
        let mut run = command();
        run.args(line.split(' ')).arg(&output);
        let mut run = run
            .stdout(Stdio::null())
            .spawn()
            .expect("the command starts");
        while !has_opened(&run) {
            thread::sleep(Duration::from_millis(10));
            assert_eq!(run.try_wait().expect("a child"), None);
        }
        let kill = Command::new("kill")
            .args(["-s", signal, &run.id().to_string()])
            .status();
        assert!(kill.expect("kill starts").success());
        assert!(run.wait().expect("a child").signal().is_some());
        assert!(!whole || !output.exists(), "{signal}");
        assert!(file_names(&folder).iter().all(|name| name == "o"));
        let _ = fs::remove_file(&output);
    }
}
