//! Prometheus' text format, version 0.0.4: families of samples, each with its HELP and TYPE line.
//! Pure. Names are those of this program; values of labels come from anywhere and are escaped.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

/// What the format is called in a `Content-Type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only rises, while the node runs.
    Counter,
}

/// The text, family by family.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
}

impl Text {
    /// A family of one sample; none if there is no value.
    pub fn one(&mut self, name: &str, kind: MetricKind, help: &str, value: Option<f64>) {
        self.family(name, kind, help, value.map(|value| (vec![], value)));
    }

    /// A family of samples with labels; without any it is left out.
    pub fn family<'a>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let kind = match kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
        };
        self.text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let labels: Vec<_> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            self.text += &format!("{name}{labels} {value}\n");
        }
    }

    pub fn finish(self) -> String {
        self.text
    }
}

/// A label's value: a backslash, a quote and a line's end are written with a backslash.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
pub mod grammar {
    //! The format's grammar, strictly: whatever is not said there is an error.

    use std::collections::BTreeMap;

    /// (name, labels, value) of each sample; panics where the text is none.
    pub type Samples = Vec<(String, BTreeMap<String, String>, f64)>;

    pub fn parse(text: &str) -> Samples {
        assert!(text.ends_with('\n'), "the last line ends");
        let (mut samples, mut described) = (Vec::new(), Vec::new());
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let help = line
                .strip_prefix("# HELP ")
                .unwrap_or_else(|| panic!("HELP: {line}"));
            let (name, help) = help.split_once(' ').expect("a name and a text");
            assert!(!help.is_empty() && is_name(name), "{line}");
            assert!(!described.contains(&name), "{name} comes once");
            described.push(name);
            let kind = lines
                .next()
                .and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.unwrap_or_else(|| panic!("TYPE of {name}"));
            assert!(["gauge", "counter"].contains(&kind), "{kind}");
            assert_eq!(
                kind == "counter",
                name.ends_with("_total"),
                "{name} is a {kind}"
            );
            let before = samples.len();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let sample = sample(line);
                assert_eq!(sample.0, name, "{line}");
                samples.push(sample);
            }
            assert!(samples.len() > before, "{name} has a sample");
        }
        samples
    }

    fn is_name(name: &str) -> bool {
        let mut chars = name.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }

    fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
        let at = line.find(['{', ' ']).expect("a value");
        let (name, mut rest) = line.split_at(at);
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").expect("a label's value");
                assert!(is_name(label), "{line}");
                let (value, after) = quoted(after);
                assert!(labels.insert(label.to_string(), value).is_none(), "{line}");
                rest = after;
                match rest.split_at(1) {
                    (",", after) => rest = after,
                    ("}", after) => break rest = after,
                    _ => panic!("{line}"),
                }
            }
        }
        let value = rest.strip_prefix(' ').expect("one blank");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        (name.to_string(), labels, value)
    }

    /// Up to the quote that ends it.
    fn quoted(text: &str) -> (String, &str) {
        let mut value = String::new();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return (value, &text[at + 1..]),
                '\\' => value.push(match chars.next().expect("an escaped character").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c}"),
                }),
                c => value.push(c),
            }
        }
        panic!("no quote ends {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_family_is_written_as_the_format_says() {
        let mut text = Text::default();
        text.one("nodectl_up", MetricKind::Gauge, "It runs.", Some(1.0));
        text.one("nodectl_none", MetricKind::Gauge, "Not known.", None);
        let labels = [("state", "done")];
        text.family(
            "nodectl_ends_total",
            MetricKind::Counter,
            "Ends.",
            [(labels.to_vec(), 1e18)],
        );
        assert_eq!(
            text.finish(),
            "# HELP nodectl_up It runs.\n# TYPE nodectl_up gauge\nnodectl_up 1\n\
             # HELP nodectl_ends_total Ends.\n# TYPE nodectl_ends_total counter\n\
             nodectl_ends_total{state=\"done\"} 1000000000000000000\n"
        );
    }

    proptest! {
        #[test]
        fn labels_are_read_as_they_were(value in "[\\PC\n\"\\\\]*", number: f64) {
            let mut text = Text::default();
            let sample = (vec![("a", value.as_str()), ("b", "x")], number);
            text.family("nodectl_x", MetricKind::Gauge, "X.", [sample]);
            let read = grammar::parse(&text.finish());
            prop_assert_eq!(&read[0].1["a"], &value);
            prop_assert!(read[0].2 == number || number.is_nan());
        }
    }
}
