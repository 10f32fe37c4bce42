//! Tasks that are added to open jobs, in requests.

use super::submit::{BadJob, bad, scalar};
use nodectl_types::{BlobHash, Params, Value, limits, query::EntryKey, spec::SPELLED};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use utoipa::ToSchema;

/// Tasks for an open job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// Names these rows: added again under their key they are the same tasks. 1 to 256 bytes.
    pub key: String,
    /// The names of the job's parameters, in any order.
    pub columns: Vec<String>,
    /// A task each: values for the columns. A number whose spelling is to be kept is
    /// `{"spelled": "1.10"}`. At most 1,000 rows, and 4 MiB.
    #[schema(value_type = Vec<Vec<Object>>)]
    pub rows: Vec<Vec<Json>>,
}

/// The numbers of the tasks that were added, in the order of the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Added {
    pub tasks: Vec<u32>,
}

impl AddRequest {
    /// The rows, each with a key of its own.
    pub fn into_rows(self) -> Result<Vec<(EntryKey, Params)>, BadJob> {
        let (most_rows, most_bytes) = (limits::MAX_ADDED, limits::MAX_ADDED_BYTES);
        if self.key.is_empty() || self.key.len() > limits::MAX_NAME_BYTES {
            let problem = format!("it has 1 to {} bytes", limits::MAX_NAME_BYTES);
            return Err(bad("key", problem));
        }
        if self.rows.is_empty() || self.rows.len() > most_rows {
            let problem = format!(
                "1 to {most_rows} are added at a time, not {}",
                self.rows.len()
            );
            return Err(bad("rows", problem));
        }
        let mut rows = Vec::with_capacity(self.rows.len());
        let mut bytes = 0;
        for (index, cells) in self.rows.into_iter().enumerate() {
            let field = format!("rows[{index}]");
            if cells.len() != self.columns.len() {
                let counts = (cells.len(), self.columns.len());
                return Err(bad(
                    field,
                    format!("{} values for {} columns", counts.0, counts.1),
                ));
            }
            let values = cells.into_iter().map(|value| cell(&field, value));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            let row: Params = self.columns.iter().cloned().zip(values).collect();
            bytes += nodectl_types::check::row_bytes(&row);
            if bytes > most_bytes {
                let problem = format!("more than {most_bytes} bytes: add them in several requests");
                return Err(bad("rows", problem));
            }
            rows.push((row_key(&self.key, index), row));
        }
        Ok(rows)
    }
}

fn cell(field: &str, value: Json) -> Result<Value, BadJob> {
    match &value {
        Json::Object(object) if object.len() == 1 => match &object.get(SPELLED) {
            Some(Json::String(text)) => Ok(Value::spelled(text)),
            _ => scalar(field, value),
        },
        _ => scalar(field, value),
    }
}

/// The first 16 bytes of BLAKE3(key ‖ 0 ‖ index of the row, as 64 bits little-endian).
fn row_key(key: &str, index: usize) -> EntryKey {
    let bytes = [key.as_bytes(), &[0], &(index as u64).to_le_bytes()].concat();
    let mut short = EntryKey::default();
    short.copy_from_slice(&BlobHash::of(&bytes).0[..16]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows(request: Json) -> Result<Vec<(EntryKey, Params)>, String> {
        let request: AddRequest =
            serde_json::from_value(request).map_err(|error| error.to_string())?;
        request.into_rows().map_err(|error| error.to_string())
    }

    #[test]
    fn rows_have_keys_of_their_own_and_numbers_their_spelling() {
        let request = json!({ "key": "a", "columns": ["x", "y"],
            "rows": [[1, "t"], [1, "t"], [{ "spelled": "1.10" }, true]] });
        let found = rows(request.clone()).unwrap();
        assert_eq!(
            found,
            rows(request).unwrap(),
            "the same request is the same rows"
        );
        assert_eq!(found[0].1, found[1].1);
        assert_ne!(found[0].0, found[1].0);
        assert_eq!(found[2].1[0], ("x".into(), Value::Spelled("1.10".into())));
    }

    #[test]
    fn what_is_no_row_is_told() {
        let of = |rows: Json| json!({ "key": "a", "columns": ["x"], "rows": rows });
        for (request, problem) in [
            (of(json!([])), "1 to 1000"),
            (of(json!([[1, 2]])), "`rows[0]`: 2 values for 1 columns"),
            (of(json!([[1], [[2]]])), "`rows[1]`"),
            (of(json!([[{ "written": "1" }]])), "`rows[0]`"),
            (
                of(json!(vec![["x".repeat(70_000)]; 70])),
                "in several requests",
            ),
            (
                json!({ "key": "", "columns": ["x"], "rows": [[1]] }),
                "`key`",
            ),
        ] {
            let error = rows(request).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
