//! How deep the expressions of a WGSL text are, before it is parsed. naga's parser counts braces
//! within braces, but not operators on operators, which it then walks by calling itself: a long
//! enough text would end the process.

use super::ShaderError;

/// The most operators that apply to each other. A level takes some kilobytes of the parser's stack.
const MAX_OPERATORS: usize = 4_000;
/// The most `else`, each of which may stand within the one before.
const MAX_ELSE: usize = 1_000;
/// The most declarations, each of which may need another.
const MAX_DECLARATIONS: usize = 20_000;

/// Fails at the place from which a text is too deep.
pub(super) fn check(text: &str) -> Result<(), ShaderError> {
    // Of each open bracket, the operators since it or its last comma.
    let mut operators: Vec<usize> = vec![0];
    let (mut total, mut elses, mut declarations) = (0usize, 0usize, 0usize);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment(rest),
            c if c.is_alphabetic() || c == '_' => {
                let word = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                match &rest[..word] {
                    "else" => elses += 1,
                    "const" | "override" | "fn" | "alias" | "struct" => declarations += 1,
                    _ => {}
                }
                word
            }
            _ => {
                match c {
                    ';' | '{' | '}' => {
                        operators.clear();
                        operators.push(0);
                        total = 0;
                    }
                    '(' | '[' => {
                        operators.push(1);
                        total += 1;
                    }
                    ')' | ']' if operators.len() > 1 => {
                        let inner = operators.pop().unwrap_or(0);
                        // What follows applies to what is within.
                        total -= inner;
                        count(&mut operators, &mut total);
                    }
                    ',' => {
                        let own = operators.last_mut().map_or(0, std::mem::take);
                        total -= own;
                    }
                    '-' | '!' | '~' | '&' | '*' | '+' | '/' | '%' | '|' | '^' | '<' | '>' | '='
                    | '.' => {
                        count(&mut operators, &mut total);
                    }
                    _ => {}
                }
                c.len_utf8()
            }
        };
        let problem = if total > MAX_OPERATORS {
            format!("more than {MAX_OPERATORS} operators apply to each other")
        } else if elses > MAX_ELSE {
            format!("the shader has more than {MAX_ELSE} `else`")
        } else if declarations > MAX_DECLARATIONS {
            format!("the shader has more than {MAX_DECLARATIONS} declarations")
        } else {
            at += length.max(1);
            continue;
        };
        return Err(ShaderError::new(problem).at(Some(at..at + c.len_utf8())));
    }
    Ok(())
}

fn count(operators: &mut [usize], total: &mut usize) {
    if let Some(last) = operators.last_mut() {
        *last += 1;
        *total += 1;
    }
}

/// The bytes of a comment, which may hold others.
fn comment(text: &str) -> usize {
    let mut depth = 0usize;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shader::{Language, Shader, ShaderChecks};

    fn shader(expression: &str) -> String {
        format!(
            "@group(0) @binding(0) var<storage, read_write> a: array<f32>;\n\
             @compute @workgroup_size(1) fn main() {{ a[0] = {expression}; }}\n"
        )
    }

    fn parse(text: &str) -> Result<Shader, ShaderError> {
        Shader::parse(Language::Wgsl, text.as_bytes())
    }

    #[test]
    fn no_text_is_too_deep_for_the_parser() {
        let deep = [
            shader(&format!("{}1.0", "- ".repeat(1_000_000))),
            shader(&format!("1.0{}", " + 1.0".repeat(500_000))),
            shader(&format!("f32({}true)", "!".repeat(1_000_000))),
            shader(&format!("1.0{}", ".x".repeat(500_000))),
            shader(&format!("a{}", "[0]".repeat(500_000))),
            shader(&"min(1.0, - - - - - - - - - -".repeat(100_000)),
            format!(
                "fn f() {{ if true {{}} {} }}",
                "else if true {} ".repeat(100_000)
            ),
            (0..200_000)
                .map(|n| format!("const a{n}=a{};", n + 1))
                .collect(),
        ];
        for text in deep {
            let error = parse(&text).unwrap_err();
            assert!(
                error.message.contains("more than") && error.span.is_some(),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_as_deep_as_it_may_be_is_parsed() {
        for text in [
            shader(&format!("1.0{}", " + 1.0".repeat(1_900))),
            shader(&format!("{}1.0", "- ".repeat(3_900))),
            format!(
                "fn f() {{ if true {{}} {} }}\n{}",
                "else if true {} ".repeat(990),
                shader("1.0")
            ),
            (0..19_000)
                .map(|n| format!("const a{n}=a{};", n + 1))
                .chain(["const a19000=1;".into(), shader("1.0")])
                .collect(),
        ] {
            let shader = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", &text[..40]));
            shader
                .compile("main", &[], ShaderChecks::Full)
                .unwrap_or_else(|error| panic!("{}: {error}", &text[..40]));
        }
        // Numbers after each other, and comments, are not deep.
        let table = format!("array<f32, 10000>({}1.0)[0]", "-1.0, ".repeat(9_999));
        let comments = format!(
            "/* {} /* */ {} */ // {}\n",
            "-".repeat(9_999),
            "+".repeat(9_999),
            "-".repeat(9_999)
        );
        parse(&(comments + &shader(&table))).unwrap();
    }

    #[test]
    fn a_workgroup_that_is_too_large_is_shown() {
        let text = shader("1.0").replace("(1)", "(1000000)");
        let error = parse(&text).unwrap_err();
        assert_eq!(
            &text[error.span.clone().unwrap()],
            "@workgroup_size(1000000)"
        );
        assert!(
            error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("16384")),
            "{error}"
        );
    }
}
