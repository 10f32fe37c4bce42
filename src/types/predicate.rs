//! The language of `where = "gpu.memory >= 8 GiB and labels.rack == 'b'"`: which nodes may run a
//! job.
//!
//! ```text
//! any      = all ("or" all)*
//! all      = one ("and" one)*
//! one      = "not" one | "(" any ")" | field op value | field "in" "[" value ("," value)* "]"
//! op       = "==" | "!=" | "<" | "<=" | ">" | ">=" | "~"
//! ```
//! `~` asks whether the field contains the value, whatever the case. A `gpu.` field holds if any
//! one GPU satisfies it; a label that the node does not have satisfies nothing, `!=` included.
//! What is said of the GPUs of a node that still looks for them is neither true nor false.
//! Pure; parsing is bounded in length and depth.

mod lex;
mod parse;
#[cfg(test)]
mod tests;

use super::{Gpu, GpuKind, NodeInfo};
use std::{cmp::Ordering, fmt};

/// A condition on a node. Displayed, it parses to itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicate(Expr);

/// Text that is no predicate. `offset` is in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
pub struct PredicateError {
    pub offset: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl Predicate {
    /// Reads a condition. Blank text is the condition that every node fulfils.
    pub fn parse(text: &str) -> Result<Self, PredicateError> {
        parse::parse(text).map(Self)
    }

    /// Whether the node fulfils it, whichever GPUs it may still find.
    pub fn eval(&self, node: &NodeInfo) -> bool {
        self.0.eval(node, false)
    }

    /// Whether the node fulfils it, or may do so once it has found its GPUs.
    pub fn may_hold(&self, node: &NodeInfo) -> bool {
        self.0.eval(node, true)
    }

    /// Whether it says anything about GPUs, which a node knows later than the rest of itself.
    pub fn concerns_gpus(&self) -> bool {
        self.0.concerns_gpus()
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    /// One of them; never fewer than two.
    Any(Vec<Expr>),
    /// Each of them; none at all only for blank text, else never fewer than two.
    All(Vec<Expr>),
    Not(Box<Expr>),
    Test {
        field: PredicateField,
        op: ComparisonOp,
        value: Literal,
    },
    In {
        field: PredicateField,
        values: Vec<Literal>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparisonOp {
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Contains,
}

const OPS: [(&str, ComparisonOp); 7] = [
    ("==", ComparisonOp::Equal),
    ("!=", ComparisonOp::Unequal),
    ("<=", ComparisonOp::LessEqual),
    (">=", ComparisonOp::GreaterEqual),
    ("<", ComparisonOp::Less),
    (">", ComparisonOp::Greater),
    ("~", ComparisonOp::Contains),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum PredicateField {
    Name,
    Software,
    Cores,
    Memory,
    Gpus,
    GpuMemory,
    GpuName,
    GpuVendor,
    GpuDriver,
    Label(String),
}

/// Every field but the labels.
const FIELDS: [(&str, PredicateField); 9] = [
    ("name", PredicateField::Name),
    ("software", PredicateField::Software),
    ("cores", PredicateField::Cores),
    ("memory", PredicateField::Memory),
    ("gpus", PredicateField::Gpus),
    ("gpu.memory", PredicateField::GpuMemory),
    ("gpu.name", PredicateField::GpuName),
    ("gpu.vendor", PredicateField::GpuVendor),
    ("gpu.driver", PredicateField::GpuDriver),
];

/// A value as written, and the number it stands for, if it does (sizes in bytes).
#[derive(Clone, Debug, PartialEq)]
struct Literal {
    text: String,
    number: Option<f64>,
}

impl Expr {
    /// `open`: what to take for the truth of what nobody can tell yet.
    fn eval(&self, node: &NodeInfo, open: bool) -> bool {
        match self {
            Self::Any(exprs) => exprs.iter().any(|expr| expr.eval(node, open)),
            Self::All(exprs) => exprs.iter().all(|expr| expr.eval(node, open)),
            Self::Not(expr) => !expr.eval(node, !open),
            Self::Test { field, .. } | Self::In { field, .. }
                if node.seeks_gpus && field.is_of_gpus() =>
            {
                open
            }
            Self::Test { field, op, value } => field.test(node, *op, value),
            Self::In { field, values } => values
                .iter()
                .any(|value| field.test(node, ComparisonOp::Equal, value)),
        }
    }
}

impl Expr {
    fn concerns_gpus(&self) -> bool {
        match self {
            Self::Any(exprs) | Self::All(exprs) => exprs.iter().any(Self::concerns_gpus),
            Self::Not(expr) => expr.concerns_gpus(),
            Self::Test { field, .. } | Self::In { field, .. } => field.is_of_gpus(),
        }
    }
}

impl PredicateField {
    fn is_of_gpus(&self) -> bool {
        matches!(
            self,
            Self::Gpus | Self::GpuMemory | Self::GpuName | Self::GpuVendor | Self::GpuDriver
        )
    }

    fn test(&self, node: &NodeInfo, op: ComparisonOp, value: &Literal) -> bool {
        let any_gpu = |test: &dyn Fn(&Gpu) -> bool| counted_gpus(node).any(test);
        match self {
            Self::Name => value.test_text(&node.name, op),
            Self::Software => value.test_text(&node.software, op),
            Self::Cores => value.test_number(f64::from(node.resources.cpu_milli) / 1e3, op),
            Self::Memory => value.test_number(node.resources.memory_bytes as f64, op),
            Self::Gpus => value.test_number(f64::from(node.resources.gpu_milli) / 1e3, op),
            Self::GpuMemory => any_gpu(&|gpu| value.test_number(gpu.memory_bytes as f64, op)),
            Self::GpuName => any_gpu(&|gpu| value.test_text(&gpu.name, op)),
            Self::GpuVendor => any_gpu(&|gpu| value.test_text(&gpu.vendor, op)),
            Self::GpuDriver => any_gpu(&|gpu| value.test_text(&gpu.driver, op)),
            Self::Label(label) => node
                .labels
                .get(label)
                .is_some_and(|text| value.test_label(text, op)),
        }
    }
}

/// The GPUs that the node offers. CPU drivers are among them only where the node counts them as
/// GPUs.
fn counted_gpus(node: &NodeInfo) -> impl Iterator<Item = &Gpu> {
    let hardware = node
        .gpus
        .iter()
        .filter(|gpu| gpu.kind != GpuKind::Software)
        .count();
    let software_counts = node.resources.gpu_milli as usize > hardware * 1000;
    node.gpus
        .iter()
        .filter(move |gpu| software_counts || gpu.kind != GpuKind::Software)
}

impl Literal {
    fn new(text: String) -> Self {
        let number = super::units::parse_bytes(&text)
            .ok()
            .map(|bytes| bytes as f64);
        // `parse_bytes` rounds down to whole bytes; a plain number keeps its fraction.
        let number = text
            .trim()
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .or(number);
        Self { text, number }
    }

    fn test_number(&self, actual: f64, op: ComparisonOp) -> bool {
        self.number
            .and_then(|number| actual.partial_cmp(&number))
            .is_some_and(|order| op.accepts(order))
    }

    fn test_text(&self, actual: &str, op: ComparisonOp) -> bool {
        match op {
            ComparisonOp::Contains => actual.to_lowercase().contains(&self.text.to_lowercase()),
            ComparisonOp::Equal | ComparisonOp::Unequal => op.accepts(actual.cmp(&self.text)),
            _ => op.accepts(natural_order(actual, &self.text)),
        }
    }

    /// Labels are text that often holds a number or a size: compared as such when both sides are.
    fn test_label(&self, actual: &str, op: ComparisonOp) -> bool {
        match (op, self.number, Literal::new(actual.to_string()).number) {
            (ComparisonOp::Contains, ..) | (_, None, _) | (_, _, None) => {
                self.test_text(actual, op)
            }
            (_, Some(_), Some(actual)) => self.test_number(actual, op),
        }
    }
}

impl ComparisonOp {
    fn accepts(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterEqual => order.is_ge(),
            Self::Contains => false,
        }
    }
}

/// Text order in which runs of digits count as numbers: `node9` < `node10`, driver `550.54` <
/// `550.120`.
fn natural_order(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left, right);
    loop {
        let (left_run, left_rest) = split_run(left);
        let (right_run, right_rest) = split_run(right);
        let digits = |run: &str| run.starts_with(|c: char| c.is_ascii_digit());
        let order = if digits(left_run) && digits(right_run) {
            let (left, right) = (
                left_run.trim_start_matches('0'),
                right_run.trim_start_matches('0'),
            );
            left.len().cmp(&right.len()).then(left.cmp(right))
        } else {
            left_run.cmp(right_run)
        };
        if order.is_ne() || left_run.is_empty() {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
}

/// The longest start of digits only or of no digits.
fn split_run(text: &str) -> (&str, &str) {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    text.split_at(
        text.find(|c: char| c.is_ascii_digit() != digits)
            .unwrap_or(text.len()),
    )
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(exprs) => write_joined(f, exprs, " or ", |expr| matches!(expr, Self::Any(_))),
            Self::All(exprs) => write_joined(f, exprs, " and ", |expr| {
                matches!(expr, Self::Any(_) | Self::All(_))
            }),
            Self::Not(expr) if matches!(**expr, Self::Any(_) | Self::All(_)) => {
                write!(f, "not ({expr})")
            }
            Self::Not(expr) => write!(f, "not {expr}"),
            Self::Test { field, op, value } => write!(f, "{field} {op} {value}"),
            Self::In { field, values } => {
                write!(f, "{field} in [")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

fn write_joined(
    f: &mut fmt::Formatter<'_>,
    exprs: &[Expr],
    glue: &str,
    parens: fn(&Expr) -> bool,
) -> fmt::Result {
    for (index, expr) in exprs.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { glue })?;
        if parens(expr) {
            write!(f, "({expr})")?;
        } else {
            write!(f, "{expr}")?;
        }
    }
    Ok(())
}

impl fmt::Display for PredicateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Label(label) = self {
            return write!(f, "labels.{label}");
        }
        let (name, _) = FIELDS
            .iter()
            .find(|(_, field)| field == self)
            .expect("FIELDS has every field but labels");
        f.write_str(name)
    }
}

impl fmt::Display for ComparisonOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, _) = OPS
            .iter()
            .find(|(_, op)| op == self)
            .expect("OPS has every operator");
        f.write_str(sign)
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if lex::is_bare(&self.text) {
            return f.write_str(&self.text);
        }
        write!(
            f,
            "'{}'",
            self.text.replace('\\', "\\\\").replace('\'', "\\'")
        )
    }
}
