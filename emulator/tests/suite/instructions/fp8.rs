//! Conversions of FP8, by the formats' definitions.

use crate::tiny::{hopper_warp, module};
use emulator::Module;
use half::f16;

/// The number of an e4m3 or e5m2 code with so many bits of fraction.
fn number(code: u32, fraction_bits: u32) -> f32 {
    let bias = if fraction_bits == 3 { 7 } else { 15 };
    let (exponent, fraction) = (
        ((code & 0x7f) >> fraction_bits) as i32,
        (code & ((1 << fraction_bits) - 1)) as f32 / (1 << fraction_bits) as f32,
    );
    let magnitude = match (fraction_bits, exponent) {
        (3, 15) if fraction == 0.875 => f32::NAN,
        (2, 31) if fraction == 0.0 => f32::INFINITY,
        (2, 31) => f32::NAN,
        (_, 0) => fraction * 2_f32.powi(1 - bias),
        _ => (1.0 + fraction) * 2_f32.powi(exponent - bias),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The two codes of pairs of f32, the first of which goes to the high byte.
fn rounded(opcode: &str, pairs: &[[f32; 2]]) -> Vec<u32> {
    let body = format!(
        "mad.wide.u32 %d0, %lane, 8, %in;
        ld.global.b32 %r1, [%d0]; ld.global.b32 %r2, [%d0+4];
        {opcode} %h0, %r1, %r2;
        cvt.u32.u16 %r0, %h0; st.global.b32 [%out], %r0;"
    );
    let mut found = Vec::new();
    for pairs in pairs.chunks(32) {
        let mut input: Vec<u32> = pairs.as_flattened().iter().map(|x| x.to_bits()).collect();
        input.resize(64, 0);
        let words = hopper_warp(&body, &input);
        found.extend(words.iter().take(pairs.len()).map(|words| words[0]));
    }
    found
}

/// The results of an instruction of one operand, whose widths are `to` and `from` bits.
fn converted(opcode: &str, to: u32, from: u32, operands: &[u32]) -> Vec<u32> {
    let instruction = match (to, from) {
        (16, 32) => format!("{opcode} %h0, %r1; cvt.u32.u16 %r0, %h0;"),
        _ => format!("cvt.u16.u32 %h0, %r1; {opcode} %r0, %h0;"),
    };
    let body = format!(
        "mad.wide.u32 %d0, %lane, 4, %in; ld.global.b32 %r1, [%d0];
        {instruction} st.global.b32 [%out], %r0;"
    );
    let mut found = Vec::new();
    for operands in operands.chunks(32) {
        let mut input = operands.to_vec();
        input.resize(32, 0);
        let words = hopper_warp(&body, &input);
        found.extend(words.iter().take(operands.len()).map(|words| words[0]));
    }
    found
}

#[test]
fn every_code_survives_conversions() {
    for (format, fraction_bits, largest) in [("e4m3x2", 3, 0x7e), ("e5m2x2", 2, 0x7b)] {
        let codes: Vec<u32> = (0..256).map(|low| (255 - low) << 8 | low).collect();
        let wide = converted(&format!("cvt.rn.f16x2.{format}"), 32, 16, &codes);
        let relu = converted(&format!("cvt.rn.relu.f16x2.{format}"), 32, 16, &codes);
        for ((pair, wide), relu) in codes.iter().zip(&wide).zip(&relu) {
            for (code, bits, clamped) in [
                (pair & 0xff, wide & 0xffff, relu & 0xffff),
                (pair >> 8, wide >> 16, relu >> 16),
            ] {
                let expected = match number(code, fraction_bits) {
                    x if x.is_nan() => 0x7fff,
                    x => u32::from(f16::from_f32(x).to_bits()),
                };
                assert_eq!(bits, expected, "{format} {code:#x}");
                let negative = number(code, fraction_bits) < 0.0;
                assert_eq!(
                    clamped,
                    if negative { 0 } else { expected },
                    "{format} {code:#x}"
                );
            }
        }
        let back = converted(&format!("cvt.rn.satfinite.{format}.f16x2"), 16, 32, &wide);
        for (pair, back) in codes.iter().zip(back) {
            for (code, found) in [(pair & 0xff, back & 0xff), (pair >> 8, back >> 8)] {
                let expected = match number(code, fraction_bits) {
                    x if x.is_nan() => 0x7f,
                    x if x.is_infinite() => largest | code & 0x80,
                    _ => code,
                };
                assert_eq!(found, expected, "{format} {code:#x}");
            }
        }
    }
}

#[test]
fn f32_round_to_the_nearest_code() {
    for (format, fraction_bits, largest) in [("e4m3x2", 3, 0x7e_u32), ("e5m2x2", 2, 0x7b)] {
        let mut pairs = Vec::new();
        let mut expected = Vec::new();
        for code in 0..largest {
            let half = (number(code, fraction_bits) + number(code + 1, fraction_bits)) / 2.0;
            let [below, above] = [half.to_bits() - 1, half.to_bits() + 1].map(f32::from_bits);
            let even = code + code % 2;
            pairs.extend([[below, -above], [half, -half], [above, -below]]);
            expected.extend([(code, code + 1), (even, even), (code + 1, code)]);
        }
        pairs.extend([
            [1e9, f32::NEG_INFINITY],
            [f32::INFINITY, f32::MIN],
            [0.0, -0.0],
        ]);
        expected.extend([(largest, largest), (largest, largest), (0, 0)]);
        let found = rounded(&format!("cvt.rn.satfinite.{format}.f32"), &pairs);
        let relu = rounded(&format!("cvt.rn.satfinite.relu.{format}.f32"), &pairs);
        for (i, (high, low)) in expected.into_iter().enumerate() {
            assert_eq!(found[i], high << 8 | low | 0x80, "{format} {:?}", pairs[i]);
            let low = if pairs[i][1] == 0.0 { 0x80 } else { 0 };
            assert_eq!(relu[i], high << 8 | low, "{format} {:?}", pairs[i]);
        }
        for opcode in ["cvt.rn.satfinite", "cvt.rn.satfinite.relu"] {
            let found = rounded(&format!("{opcode}.{format}.f32"), &[[f32::NAN, -f32::NAN]]);
            assert_eq!(found, [0x7f7f]);
        }
    }
}

#[test]
fn older_targets_and_other_modifiers_do_not_load() {
    let error = |body: &str| {
        Module::parse(&module(body), "tiny.ptx")
            .unwrap_err()
            .to_string()
    };
    assert!(error("cvt.rn.f16x2.e4m3x2 %r0, %h0;").contains("sm_89"));
    let product = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
        {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r0, %r1, %r2, %r3};";
    assert!(error(product).contains("sm_89"));
    for body in [
        "cvt.rn.e4m3x2.f32 %h0, %r0, %r1;",
        "cvt.rn.relu.satfinite.e4m3x2.f32 %h0, %r0, %r1;",
        "cvt.satfinite.e4m3x2.f32 %h0, %r0, %r1;",
        "cvt.rn.satfinite.f16x2.e4m3x2 %r0, %h0;",
        "cvt.f16x2.e4m3x2 %r0, %h0;",
    ] {
        let text = module(body).replace("sm_80", "sm_90a");
        let error = Module::parse(&text, "tiny.ptx").unwrap_err().to_string();
        assert!(error.contains("unknown"), "{body}: {error}");
    }
}
