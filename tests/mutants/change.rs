//! Changes to a line of PTX.

/// Drops a line.
pub fn remove(_: &str) -> String {
    String::new()
}

/// Leaves a line to half of the warp.
pub fn diverge(line: &str) -> String {
    format!(
        "{{ .reg .pred %half; .reg .b32 %id;
        mov.u32 %id, %laneid;
        setp.lt.u32 %half, %id, 16;
        @%half bra $mutant;
        {line}
        $mutant: }}"
    )
}

/// Swaps the operands at two places, counted from 0.
pub fn swap(line: &str, a: usize, b: usize) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric();
    let opcode_end = line.find(|c: char| c == '{' || c.is_whitespace());
    let opcode_end = opcode_end.expect("operands");
    let (opcode, operands) = line.split_at(opcode_end);
    let names: Vec<&str> = operands
        .split(|c| !is_name(c))
        .filter(|s| !s.is_empty())
        .collect();
    let mut at = 0;
    let mut swapped = opcode.to_owned();
    let mut rest = operands;
    while let Some(start) = rest.find(is_name) {
        let end = rest[start..]
            .find(|c| !is_name(c))
            .map_or(rest.len(), |n| start + n);
        let name = match at {
            _ if at == a => names[b],
            _ if at == b => names[a],
            _ => names[at],
        };
        swapped += &rest[..start];
        swapped += name;
        rest = &rest[end..];
        at += 1;
    }
    swapped + rest
}

/// `opcode d, ...` becomes `mov d, 0`.
pub fn zero(line: &str) -> String {
    let (_, operands) = line
        .trim()
        .split_once(char::is_whitespace)
        .expect("operands");
    let (to, _) = operands.split_once(',').expect("operands");
    format!("mov.b32 {to}, 0;")
}

/// `selp d, a, b, p` or `shr d, a, n` becomes `mov d, a`.
pub fn always_first(line: &str) -> String {
    let (opcode, operands) = line
        .trim()
        .split_once(char::is_whitespace)
        .expect("operands");
    let kind = opcode.rsplit('.').next().expect("a type");
    let operands: Vec<&str> = operands.split(',').collect();
    format!("mov.{kind} {}, {};", operands[0], operands[1])
}

/// `mul d, a, b` becomes `mov d, b`.
pub fn always_last(line: &str) -> String {
    let (opcode, operands) = line
        .trim()
        .trim_end_matches(';')
        .split_once(char::is_whitespace)
        .expect("operands");
    let kind = opcode.rsplit('.').next().expect("a type");
    let operands: Vec<&str> = operands.split(',').collect();
    format!("mov.{kind} {}, {};", operands[0], operands[2])
}
