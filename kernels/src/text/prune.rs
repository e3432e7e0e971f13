//! The part of a kernel that can run.
//!
//! With its switches written, most branches of a kernel with options are decided. The driver's assembler finds that as
//! well, but only after it has made a graph of all blocks, and each costs it time. So it gets no blocks that cannot run.
//!
//! A label that nothing jumps to any more stays, though it splits a block in two. Without it the assembler orders
//! instructions otherwise: where options are on, some kernels then spilled 24 to 80 bytes more, others less. With it, of 100
//! kernels with options none has more spills than from the whole text, and it takes 20 to 45 % less time.

use super::known::Known;
use super::statement::{Kind, Statement, end, statements, words};
use std::collections::HashMap;

/// The text of a module without statements that no thread reaches, and without branches that are never taken or lead to
/// the next statement. Comments stay.
///
/// A branch is decided where its predicate follows from constants by registers that one instruction writes each. What
/// stands in braces is kept or left out as a whole, and taken to jump to all labels that it names.
///
/// ```
/// let module = "\
/// .visible .entry k()
/// {
/// .reg .pred %p<2>;
/// .reg .b32 %r<3>;
/// .reg .b32 switch_mask;
/// mov.b32 switch_mask, 0;
/// mov.b32 %r1, switch_mask;
/// setp.eq.b32 %p1, %r1, 0;
/// @%p1 bra $skip;
/// mov.b32 %r2, 7;
/// $skip:
/// ret;
/// }
/// ";
/// let pruned = module.replace("@%p1 bra $skip;\nmov.b32 %r2, 7;\n", "");
/// assert_eq!(kernels::text::prune(module), pruned);
/// ```
pub fn prune(ptx: &str) -> String {
    let mut pruned = String::with_capacity(ptx.len());
    let mut rest = ptx;
    // Braces of a body stand at the start of a line.
    while let Some(start) = rest.find("\n{\n") {
        let (before, body) = rest.split_at(start + 1);
        let (body, after) = body.split_at(end(body));
        pruned += before;
        match Body::parse(body) {
            Some(body) => body.write(&mut pruned),
            None => pruned += body,
        }
        rest = after;
    }
    pruned + rest
}

/// The statements of a kernel.
struct Body<'a> {
    statements: Vec<Statement<'a>>,
    /// Places of labels among the statements.
    labels: HashMap<&'a str, usize>,
}

/// How threads go through a body.
struct Flow {
    /// Whether threads may reach each statement.
    reached: Vec<bool>,
    /// Whether each branch is always taken, or never; `None` where it may be either.
    taken: Vec<Option<bool>>,
}

impl<'a> Body<'a> {
    /// The statements between the braces of a text; `None` if a branch leads out of them.
    fn parse(text: &'a str) -> Option<Self> {
        let text = text.strip_prefix('{')?.strip_suffix('}')?;
        let statements: Vec<_> = statements(text).collect();
        let places = (0..).zip(&statements);
        let labels = places.filter_map(|(place, statement)| match statement.kind {
            Kind::Label(name) => Some((name, place)),
            _ => None,
        });
        let labels: HashMap<_, _> = labels.collect();
        let stays = |statement: &Statement| match statement.kind {
            Kind::Branch(_, label) => labels.contains_key(label),
            _ => true,
        };
        let is_whole = statements.iter().all(stays);
        is_whole.then_some(Body { statements, labels })
    }

    /// Decides branches, until no more statements fall away.
    fn flow(&self) -> Flow {
        let mut reached = vec![true; self.statements.len()];
        loop {
            let live = self.statements.iter().zip(&reached);
            let live = live.filter(|(_, reached)| **reached);
            let known = Known::of(live.map(|(statement, _)| *statement));
            let taken = self
                .statements
                .iter()
                .map(|statement| match statement.kind {
                    Kind::Branch(None, _) => Some(true),
                    Kind::Branch(Some((predicate, wanted)), _) => {
                        known.value(predicate).map(|value| (value != 0) == wanted)
                    }
                    _ => None,
                });
            let taken: Vec<_> = taken.collect();
            let before = count(&reached);
            reached = self.reached(&taken);
            if count(&reached) >= before {
                return Flow { reached, taken };
            }
        }
    }

    /// The statements that threads may reach where branches are decided so.
    fn reached(&self, taken: &[Option<bool>]) -> Vec<bool> {
        let mut reached = vec![false; self.statements.len()];
        let mut starts = vec![0];
        while let Some(start) = starts.pop() {
            for (place, statement) in self.statements.iter().enumerate().skip(start) {
                if std::mem::replace(&mut reached[place], true) {
                    break;
                }
                match statement.kind {
                    Kind::Return => break,
                    Kind::Branch(..) if taken[place] == Some(false) => {}
                    Kind::Branch(_, label) => {
                        starts.push(self.labels[label]);
                        if taken[place] == Some(true) {
                            break;
                        }
                    }
                    _ => starts.extend(self.named(statement)),
                }
            }
        }
        reached
    }

    /// Places of the labels that a statement names which is no branch.
    fn named(&self, statement: &Statement<'a>) -> impl Iterator<Item = usize> {
        let text = match statement.kind {
            Kind::Comment | Kind::Label(_) | Kind::Branch(..) => "",
            _ => statement.text,
        };
        words(text).filter_map(|word| self.labels.get(word).copied())
    }

    /// Writes the body with what stays.
    fn write(&self, pruned: &mut String) {
        let Flow { reached, taken } = self.flow();
        let leads_on = |place: usize, label| {
            let target = self.labels[label];
            let is_empty = |place: usize| {
                let kind = self.statements[place].kind;
                !reached[place] || matches!(kind, Kind::Comment | Kind::Label(_))
            };
            place < target && (place + 1..target).all(is_empty)
        };
        pruned.push_str("{\n");
        for (place, statement) in self.statements.iter().enumerate() {
            match statement.kind {
                Kind::Comment => *pruned += statement.text,
                _ if !reached[place] => continue,
                Kind::Branch(_, label) if taken[place] == Some(false) || leads_on(place, label) => {
                    continue;
                }
                Kind::Branch(Some(_), label) if taken[place] == Some(true) => {
                    pruned.extend(["bra.uni ", label, ";"]);
                }
                _ => *pruned += statement.text,
            }
            pruned.push('\n');
        }
        pruned.push('}');
    }
}

fn count(reached: &[bool]) -> usize {
    reached.iter().filter(|reached| **reached).count()
}

#[cfg(test)]
mod tests {
    use super::prune;

    /// A kernel of these lines.
    fn kernel(lines: &str) -> String {
        format!(".version 7.0\n.visible .entry k(\n)\n.maxntid 32\n{{\n{lines}}}\n")
    }

    /// Statements, of which some fall away. `-` begins a line that does, `+` one that comes in its place.
    fn check(lines: &str) {
        let of = |mark: char, other: char| {
            let lines = lines.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(other));
            lines
                .flat_map(|line| [line.strip_prefix(mark).unwrap_or(line).trim(), "\n"])
                .collect::<String>()
        };
        let (before, after) = (kernel(&of('-', '+')), kernel(&of('+', '-')));
        assert_eq!(prune(&before), after);
        assert_eq!(prune(&after), after, "again");
    }

    const SWITCHES: &str = "
        .reg .b32 switch_on;
        mov.b32 switch_on, 2;
        mov.b32 %on, switch_on;
        .reg .b32 switch_off;
        mov.b32 switch_off, 0;
        mov.b32 %off, switch_off;
        setp.ne.b32 %p_on, %on, 0;
        setp.ne.b32 %p_off, %off, 0;
    ";

    fn check_with_switches(lines: &str) {
        check(&[SWITCHES, lines].concat());
    }

    #[test]
    fn what_a_switch_leaves_out_falls_away() {
        check_with_switches(
            "
            - @%p_off bra $other;
            add.s32 %r1, %r1, 1;
            - bra.uni $end;
            - $other:
            - add.s32 %r1, %r1, 2;
            $end:
            ret;
            ",
        );
        check_with_switches(
            "
            - @!%p_off bra $other;
            + bra.uni $other;
            - add.s32 %r1, %r1, 1;
            - ret;
            $back:
            add.s32 %r1, %r1, 3;
            ret;
            $other:
            add.s32 %r1, %r1, 2;
            bra.uni $back;
            ",
        );
    }

    /// Each predicate is true, and decides a branch to what stays.
    #[test]
    fn predicates_of_switches_are_known() {
        for (writes, predicate) in [
            ("setp.eq.b32 %p, %on, 2;", "%p"),
            ("setp.eq.b32 %p, %on, 1;", "!%p"),
            ("setp.eq.b32 %p, %off, %on;", "!%p"),
            ("not.pred %p, %p_off;", "%p"),
            ("mov.pred %p, -1;", "%p"),
            ("mov.pred %p, %p_off;", "!%p"),
            ("and.pred %p, %data, %p_off;", "!%p"),
            ("and.pred %p, %p_off, %data;", "!%p"),
            ("and.pred %p, %p_on, %p_on;", "%p"),
            ("or.pred %p, %data, %p_on;", "%p"),
            ("or.pred %p, %p_off, %p_off;", "!%p"),
            ("xor.pred %p, %p_on, %p_off;", "%p"),
            ("selp.b32 %r, 5, %data, %p_on; setp.eq.b32 %p, %r, 5;", "%p"),
            (
                "selp.b32 %r, %data, -1, %p_off; setp.eq.b32 %p, %r, 0xffffffff;",
                "%p",
            ),
        ] {
            let writes = writes.replace("; ", ";\n");
            check_with_switches(&format!(
                "
                {writes}
                - @{predicate} bra $end;
                - add.s32 %r1, %r1, 1;
                $end:
                ret;
                "
            ));
        }
    }

    /// Each predicate may be true or not.
    #[test]
    fn what_data_decides_stays() {
        for writes in [
            "setp.eq.b32 %p, %data, 0;",
            "and.pred %p, %data, %p_on;",
            "or.pred %p, %data, %p_off;",
            "xor.pred %p, %data, %p_on;",
            "selp.b32 %r, 0, 1, %data;\nsetp.eq.b32 %p, %r, 0;",
            // Written twice, or perhaps not at all, or by more than is known.
            "mov.pred %p, 0;\nmov.pred %p, -1;",
            "mov.b32 %r, 0;\nadd.s32 %r, %r, 1;\nsetp.eq.b32 %p, %r, 0;",
            "mov.b32 %r, 0;\nld.global.v2.b32 {%s, %r}, [%rd];\nsetp.eq.b32 %p, %r, 0;",
            "mov.b32 %r, 0;\nshfl.sync.bfly.b32 %s|%r, %s, 1, 31, -1;\nsetp.eq.b32 %p, %r, 0;",
            "mov.b32 %r, 0;\n{ .reg .b32 t; mov.b32 t, 1; mov.b32 %r, t; }\nsetp.eq.b32 %p, %r, 0;",
            "@%data mov.b32 %r, 0;\nsetp.eq.b32 %p, %r, 0;",
            "not.pred %p, %q;\nnot.pred %q, %p;",
        ] {
            check_with_switches(&format!(
                "
                {writes}
                @%p bra $end;
                add.s32 %r1, %r1, 1;
                $end:
                ret;
                "
            ));
        }
    }

    /// A register with two values, of which one is left when the other block falls away.
    #[test]
    fn what_falls_away_decides_more() {
        check_with_switches(
            "
            - @%p_off bra $one;
            mov.b32 %r, 0;
            - bra.uni $both;
            - $one:
            - mov.b32 %r, 1;
            $both:
            setp.eq.b32 %p, %r, 1;
            - @%p bra $end;
            add.s32 %r1, %r1, 1;
            $end:
            ret;
            ",
        );
    }

    #[test]
    fn loops_stay_and_so_does_what_follows_a_conditional_return() {
        check(
            "
            $loop:
            add.s32 %r1, %r1, 1;
            setp.lt.s32 %p, %r1, 9;
            @%p bra $loop;
            @%p ret;
            bra.uni $loop;
            - add.s32 %r1, %r1, 1;
            ",
        );
    }

    /// Blocks may hold labels of their own, jump out, and be written on several lines.
    #[test]
    fn what_a_block_names_stays() {
        check(
            "
            mov.b32 %r, 0;
            { .reg .pred done;
            again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], %r2;
            @!done bra again; }
            { .reg .pred %half; setp.lt.u32 %half, %r1, 16; @%half bra $far; }
            ret;
            - mov.b32 %r, 1;
            $far:
            ret;
            ",
        );
    }

    #[test]
    fn comments_stay_before_what_follows_them() {
        check(
            "
            /* %r140; { */
            @%q bra $end;
            add.s32 %r1, /* ; */ %r1, 2;
            ret;
            //@ a.rs:1
            - bra.uni $end;
            //@ b.rs:2
            - add.s32 %r1, %r1, 1;
            //@ c.rs:3; with { in it
            $end:
            ret;
            ",
        );
    }

    #[test]
    fn a_body_that_is_not_understood_stays() {
        let lines = "bra.uni $nowhere;\nadd.s32 %r1, %r1, 1;\n";
        assert_eq!(prune(&kernel(lines)), kernel(lines));
        for text in ["", "no kernel", ".entry k()\n{\nret;"] {
            assert_eq!(prune(text), text);
        }
    }

    #[test]
    fn each_kernel_of_a_text_is_pruned() {
        let [before, after] = ["ret;\nexit;\n", "ret;\n"].map(|lines| kernel(lines).repeat(2));
        assert_eq!(prune(&before), after);
    }
}
