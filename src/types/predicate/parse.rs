//! Tokens to a condition, by recursive descent. Owns the limits and the rule which field takes
//! which value.

use super::{
    ComparisonOp, Expr, FIELDS, Literal, PredicateError, PredicateField,
    lex::{Token, lex},
};
use crate::suggest::nearest;

/// The longest text that is read, in bytes.
const MAX_BYTES: usize = 4096;
/// How deep parentheses and `not` may nest.
const MAX_DEPTH: usize = 32;

/// What people write first, and what it is called here.
const SYNONYMS: [(&str, &str); 9] = [
    ("cpu", "cores"),
    ("cpus", "cores"),
    ("ram", "memory"),
    ("mem", "memory"),
    ("gpu", "gpus"),
    ("vram", "gpu.memory"),
    ("host", "name"),
    ("hostname", "name"),
    ("version", "software"),
];

pub(super) fn parse(text: &str) -> Result<Expr, PredicateError> {
    if text.len() > MAX_BYTES {
        let message = format!(
            "a condition of {} bytes; at most {MAX_BYTES} are read",
            text.len()
        );
        let hint = Some("give the nodes a label and ask for that".to_string());
        return Err(PredicateError {
            offset: MAX_BYTES,
            message,
            hint,
        });
    }
    if text.trim().is_empty() {
        return Ok(Expr::All(Vec::new()));
    }
    let mut parser = Parser {
        tokens: lex(text)?,
        next: 0,
        end: text.trim_end().len(),
        depth: 0,
    };
    let expr = parser.any()?;
    match parser.peek() {
        None => Ok(expr),
        Some(_) => Err(parser.unexpected("`and`, `or` or the end")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    /// Where the text ends: the place of what is missing.
    end: usize,
    depth: usize,
}

impl Parser {
    fn any(&mut self) -> Result<Expr, PredicateError> {
        self.chain("or", Self::all, Expr::Any)
    }

    fn all(&mut self) -> Result<Expr, PredicateError> {
        self.chain("and", Self::one, Expr::All)
    }

    fn chain(
        &mut self,
        keyword: &'static str,
        part: fn(&mut Self) -> Result<Expr, PredicateError>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr, PredicateError> {
        let first = part(self)?;
        if self.peek() != Some(&Token::Keyword(keyword)) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.accept(&Token::Keyword(keyword)) {
            parts.push(part(self)?);
        }
        Ok(join(parts))
    }

    fn one(&mut self) -> Result<Expr, PredicateError> {
        if self.accept(&Token::Keyword("not")) {
            return self.nested(|parser| Ok(Expr::Not(Box::new(parser.one()?))));
        }
        if self.accept(&Token::Open) {
            return self.nested(|parser| {
                let expr = parser.any()?;
                parser.expect(&Token::Close, "`)`")?;
                Ok(expr)
            });
        }
        self.test()
    }

    fn nested(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<Expr, PredicateError>,
    ) -> Result<Expr, PredicateError> {
        if self.depth == MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(PredicateError {
                offset: self.offset(),
                message,
                hint: None,
            });
        }
        self.depth += 1;
        let expr = part(self)?;
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self) -> Result<Expr, PredicateError> {
        let offset = self.offset();
        let Some(Token::Word(word)) = self.peek() else {
            return Err(self.unexpected("a field such as `memory`"));
        };
        let field = field(word, offset)?;
        self.next += 1;
        if self.accept(&Token::Keyword("in")) {
            return Ok(Expr::In {
                values: self.list(&field)?,
                field,
            });
        }
        let op_offset = self.offset();
        let Some(Token::Op(op)) = self.peek() else {
            return Err(self.unexpected("`==`, `!=`, `<`, `<=`, `>`, `>=`, `~` or `in`"));
        };
        let op = *op;
        if op == ComparisonOp::Contains && field.is_number() {
            let message = format!("`~` looks for text, and `{field}` is a number");
            return Err(PredicateError {
                offset: op_offset,
                message,
                hint: None,
            });
        }
        self.next += 1;
        Ok(Expr::Test {
            value: self.value(&field)?,
            field,
            op,
        })
    }

    fn list(&mut self, field: &PredicateField) -> Result<Vec<Literal>, PredicateError> {
        self.expect(&Token::ListOpen, "`[`")?;
        let mut values = vec![self.value(field)?];
        while self.accept(&Token::Comma) {
            values.push(self.value(field)?);
        }
        self.expect(&Token::ListClose, "`,` or `]`")?;
        Ok(values)
    }

    fn value(&mut self, field: &PredicateField) -> Result<Literal, PredicateError> {
        let offset = self.offset();
        let Some(Token::Word(text) | Token::Value(text)) = self.peek() else {
            return Err(self.unexpected("a value"));
        };
        let literal = Literal::new(text.clone());
        self.next += 1;
        field
            .check(&literal)
            .map(|()| literal)
            .map_err(|(message, hint)| PredicateError {
                offset,
                message,
                hint,
            })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    fn offset(&self) -> usize {
        self.tokens
            .get(self.next)
            .map_or(self.end, |(offset, _)| *offset)
    }

    fn accept(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &Token, name: &str) -> Result<(), PredicateError> {
        if self.accept(token) {
            Ok(())
        } else {
            Err(self.unexpected(name))
        }
    }

    fn unexpected(&self, wanted: &str) -> PredicateError {
        let found = match self.peek() {
            None => "it ends here".to_string(),
            Some(Token::Keyword(keyword)) => format!("found `{keyword}`"),
            Some(Token::Word(text) | Token::Value(text)) => format!("found `{text}`"),
            Some(Token::Op(op)) => format!("found `{op}`"),
            Some(Token::Open) => "found `(`".to_string(),
            Some(Token::Close) => "found `)`".to_string(),
            Some(Token::ListOpen) => "found `[`".to_string(),
            Some(Token::ListClose) => "found `]`".to_string(),
            Some(Token::Comma) => "found `,`".to_string(),
        };
        PredicateError {
            offset: self.offset(),
            message: format!("expected {wanted}, {found}"),
            hint: None,
        }
    }
}

fn field(word: &str, offset: usize) -> Result<PredicateField, PredicateError> {
    if let Some((_, field)) = FIELDS.iter().find(|(name, _)| *name == word) {
        return Ok(field.clone());
    }
    if let Some(label) = word
        .strip_prefix("labels.")
        .filter(|label| !label.is_empty())
    {
        return Ok(PredicateField::Label(label.to_string()));
    }
    let names = || FIELDS.iter().map(|(name, _)| *name);
    let synonym = SYNONYMS
        .iter()
        .find(|(other, _)| other.eq_ignore_ascii_case(word))
        .map(|(_, name)| *name);
    let hint = match synonym.or_else(|| nearest(word, names())) {
        Some(name) => format!("did you mean `{name}`?"),
        None if word.starts_with("label") => "a label is written `labels.NAME`".to_string(),
        None => format!(
            "there are {} and labels.NAME",
            names().collect::<Vec<_>>().join(", ")
        ),
    };
    Err(PredicateError {
        offset,
        message: format!("a node has no field `{word}`"),
        hint: Some(hint),
    })
}

impl PredicateField {
    fn is_number(&self) -> bool {
        matches!(self, Self::Cores | Self::Gpus) || self.is_size()
    }

    fn is_size(&self) -> bool {
        matches!(self, Self::Memory | Self::GpuMemory)
    }

    /// Whether the field can be compared with the value; else what to say, and a hint.
    fn check(&self, value: &Literal) -> Result<(), (String, Option<String>)> {
        let text = &value.text;
        let plain = text.trim().parse::<f64>().ok();
        if self.is_size() {
            return match (value.number, plain) {
                (None, _) => Err((
                    format!("`{self}` is compared with a size, and `{text}` is none"),
                    Some("e.g. `8 GiB`".into()),
                )),
                // Nobody asks for 8 bytes: the unit was forgotten.
                (_, Some(bytes)) if bytes > 0.0 && bytes < 1024.0 => Err((
                    format!("`{text}` would be {text} bytes"),
                    Some(format!("write `{text} GiB`")),
                )),
                _ => Ok(()),
            };
        }
        if self.is_number() && (plain.is_none() || value.number.is_none()) {
            return Err((
                format!("`{self}` is compared with a number, and `{text}` is none"),
                None,
            ));
        }
        Ok(())
    }
}
