//! From names to numbers: which tasks the `needs` of a graph mean, and an order in which each task
//! comes behind those that it needs.

use super::{Needs, RowSet};
use crate::{Params, TaskIndex, glob, limits, suggest, task_names, template, text, units::counted};

use std::collections::{BTreeMap, BTreeSet};

/// The most tasks of a circle that are named.
const NAMED: usize = 8;

/// Tasks that are alike, as somebody writes them: `name` and `needs` are templates over their
/// parameters.
pub struct GraphTask<'g> {
    pub name: &'g str,
    /// Names of tasks, or patterns of names.
    pub needs: Vec<&'g str>,
    pub params: &'g RowSet,
}

/// A graph whose tasks have numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct OrderedGraph {
    /// Where each kind stood in what `order` was given.
    pub kinds: Vec<usize>,
    pub needs: Needs,
}

/// Which need of which kind is none, and why; without `need`, it is the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BadNeed {
    pub kind: usize,
    pub need: Option<usize>,
    pub problem: String,
    pub hint: Option<String>,
}

/// Where a name stands: its kind, and its row there.
type NamePlace = (usize, u32);

struct Names<'g> {
    kinds: &'g [GraphTask<'g>],
    places: BTreeMap<String, NamePlace>,
    /// What patterns came to.
    matched: BTreeMap<String, Vec<NamePlace>>,
}

/// Gives the tasks numbers. Kinds keep the order that they have, as far as what they need allows.
pub fn order(kinds: &[GraphTask<'_>]) -> Result<OrderedGraph, BadNeed> {
    let mut names = Names::of(kinds)?;
    let mut rows: Vec<Vec<BTreeSet<NamePlace>>> = Vec::with_capacity(kinds.len());
    // Of each kind, the kinds that it needs, and by which of its needs.
    let mut edges: Vec<BTreeMap<usize, usize>> = Vec::with_capacity(kinds.len());
    for (index, kind) in kinds.iter().enumerate() {
        let mut needed = Vec::new();
        let mut through = BTreeMap::new();
        for row in 0..kind.params.rows {
            let places = names.needed_by(index, row, &mut through)?;
            needed.push(places);
        }
        rows.push(needed);
        edges.push(through);
    }
    let order = sorted(kinds, &edges)?;
    let mut first = vec![0u32; kinds.len()];
    let mut next = 0;
    for kind in &order {
        first[*kind] = next;
        next += kinds[*kind].params.rows;
    }
    let number = |(kind, row): &NamePlace| first[*kind] + row;
    let numbered = order.iter().flat_map(|kind| &rows[*kind]).map(|places| {
        let mut needed: Vec<TaskIndex> = places.iter().map(number).collect();
        needed.sort_unstable();
        needed
    });
    let needs = Needs::of_rows(numbered);
    Ok(OrderedGraph {
        kinds: order,
        needs,
    })
}

impl<'g> Names<'g> {
    fn of(kinds: &'g [GraphTask<'g>]) -> Result<Self, BadNeed> {
        let tasks: u64 = kinds.iter().map(|kind| u64::from(kind.params.rows)).sum();
        let bad = |kind, problem| BadNeed {
            kind,
            need: None,
            problem,
            hint: None,
        };
        if tasks > limits::MAX_NAMED_TASKS {
            let most = limits::MAX_NAMED_TASKS;
            let problem = format!("the graph has {tasks} tasks; at most {most} are possible");
            return Err(bad(kinds.len() - 1, problem));
        }
        let mut places = BTreeMap::new();
        for (index, kind) in kinds.iter().enumerate() {
            for row in 0..kind.params.rows {
                let name = task_names::of_kind(kind.name, &kind.params.get(u64::from(row)))
                    .map_err(|problem| bad(index, problem))?;
                if places.insert(name.clone(), (index, row)).is_some() {
                    let name = text::shown(&name);
                    return Err(BadNeed {
                        hint: Some(
                            "a name has what tells its tasks apart: name = \"fit-{k}\"".into(),
                        ),
                        ..bad(index, format!("two tasks would be called `{name}`"))
                    });
                }
            }
        }
        Ok(Self {
            kinds,
            places,
            matched: BTreeMap::new(),
        })
    }

    /// The tasks that a row of a kind needs. `through` learns which kinds they are of.
    fn needed_by(
        &mut self,
        kind: usize,
        row: u32,
        through: &mut BTreeMap<usize, usize>,
    ) -> Result<BTreeSet<NamePlace>, BadNeed> {
        let params = self.kinds[kind].params.get(u64::from(row));
        let mut needed = BTreeSet::new();
        for need in 0..self.kinds[kind].needs.len() {
            let bad = |(problem, hint)| BadNeed {
                kind,
                need: Some(need),
                problem,
                hint,
            };
            let found = self
                .found(self.kinds[kind].needs[need], &params)
                .map_err(bad)?;
            if found.contains(&(kind, row)) {
                let itself = (format!("{} needs itself", self.task(kind, row)), None);
                return Err(bad(itself));
            }
            // Tasks of one kind stand in the order that they are written in.
            if let Some((_, later)) = found.iter().find(|place| place.0 == kind && place.1 > row) {
                let (this, later) = (self.task(kind, row), self.task(kind, *later));
                let problem = format!("{this} needs {later}, which comes after it");
                let hint = "a parameter set has to come after those whose tasks it needs";
                return Err(bad((problem, Some(hint.into()))));
            }
            let others = found.iter().filter(|(other, _)| *other != kind);
            others.for_each(|(other, _)| {
                through.entry(*other).or_insert(need);
            });
            needed.extend(found);
            if needed.len() > limits::MAX_NEEDS {
                let most = limits::MAX_NEEDS;
                let problem = format!(
                    "a task needs {} others; at most {most} are possible",
                    needed.len()
                );
                let hint = "put a task between them that gathers the results of some";
                return Err(bad((problem, Some(hint.into()))));
            }
        }
        Ok(needed)
    }

    /// The tasks that a need means. With parameters in their places it is names, one a line.
    fn found(
        &mut self,
        need: &str,
        params: &Params,
    ) -> Result<Vec<NamePlace>, (String, Option<String>)> {
        let known = |name: &str| {
            let (_, value) = params.iter().find(|(param, _)| param == name)?;
            Some(value.to_string())
        };
        let names = template::expand(need, &|name| template::value(name, &known))
            .map_err(|error| (error.to_string(), None))?;
        let mut found = Vec::new();
        for name in names.split('\n').filter(|name| !name.is_empty()) {
            found.extend(self.named(name)?);
        }
        Ok(found)
    }

    /// The tasks with a name, or one like it, of which there is at least one.
    fn named(&mut self, name: &str) -> Result<Vec<NamePlace>, (String, Option<String>)> {
        if let Some(place) = self.places.get(name) {
            return Ok(vec![*place]);
        }
        let shown = text::shown(name).to_string();
        if !name.contains(['*', '?']) {
            let near = suggest::nearest(name, self.places.keys().map(String::as_str));
            let hint = near.map(|near| format!("did you mean `{near}`?"));
            return Err((format!("there is no task `{shown}` to need"), hint));
        }
        let places = &self.places;
        let matched = self.matched.entry(name.to_string()).or_insert_with(|| {
            let named = places
                .iter()
                .filter(|(other, _)| glob::matches(name, other));
            named.map(|(_, place)| *place).collect()
        });
        if matched.is_empty() {
            return Err((format!("no task has a name like `{shown}`"), None));
        }
        Ok(matched.clone())
    }

    fn task(&self, kind: usize, row: u32) -> String {
        let params = self.kinds[kind].params.get(u64::from(row));
        let name = task_names::of_kind(self.kinds[kind].name, &params).unwrap_or_default();
        format!("`{}`", text::shown(&name))
    }
}

/// The kinds in an order in which each comes behind those that it needs.
fn sorted(
    kinds: &[GraphTask<'_>],
    edges: &[BTreeMap<usize, usize>],
) -> Result<Vec<usize>, BadNeed> {
    let mut left: Vec<usize> = edges.iter().map(BTreeMap::len).collect();
    let mut followers = vec![Vec::new(); kinds.len()];
    for (kind, through) in edges.iter().enumerate() {
        through
            .keys()
            .for_each(|needed| followers[*needed].push(kind));
    }
    let mut ready: BTreeSet<usize> = (0..kinds.len()).filter(|kind| left[*kind] == 0).collect();
    let mut order = Vec::with_capacity(kinds.len());
    while let Some(kind) = ready.pop_first() {
        order.push(kind);
        for follower in &followers[kind] {
            left[*follower] -= 1;
            if left[*follower] == 0 {
                ready.insert(*follower);
            }
        }
    }
    if order.len() == kinds.len() {
        Ok(order)
    } else {
        Err(circle(kinds, edges, &left))
    }
}

/// Follows what is needed among the kinds that are left until one comes again.
fn circle(kinds: &[GraphTask<'_>], edges: &[BTreeMap<usize, usize>], left: &[usize]) -> BadNeed {
    let start = left.iter().position(|left| *left > 0).unwrap_or_default();
    let mut path = vec![start];
    loop {
        let last = path[path.len() - 1];
        let mut needed = edges[last].iter();
        let (next, need) = needed
            .find(|(needed, _)| left[**needed] > 0)
            .expect("a kind that is left needs another one that is");
        if let Some(from) = path.iter().position(|kind| kind == next) {
            let name = |kind: &usize| format!("`{}`", text::shown(kinds[*kind].name));
            let mut names: Vec<String> = path[from..].iter().take(NAMED).map(name).collect();
            if path.len() - from > NAMED {
                names.push(counted(path.len() - from - NAMED, "other"));
            }
            names.push(name(next));
            return BadNeed {
                kind: last,
                need: Some(*need),
                problem: format!("these tasks need each other: {}", names.join(" needs ")),
                hint: Some("leave out one of these needs, or split a task in two".into()),
            };
        }
        path.push(*next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    fn single() -> RowSet {
        RowSet {
            rows: 1,
            ..RowSet::default()
        }
    }

    fn of(values: &[i64]) -> RowSet {
        RowSet {
            columns: vec!["k".into()],
            cells: values.iter().copied().map(Value::Int).collect(),
            rows: values.len() as u32,
        }
    }

    fn task<'g>(name: &'g str, needs: &[&'g str], params: &'g RowSet) -> GraphTask<'g> {
        GraphTask {
            name,
            needs: needs.to_vec(),
            params,
        }
    }

    fn problem(kinds: &[GraphTask<'_>]) -> (usize, Option<usize>, String) {
        let bad = order(kinds).unwrap_err();
        (bad.kind, bad.need, bad.problem)
    }

    #[test]
    fn tasks_come_behind_what_they_need() {
        let (one, three) = (single(), of(&[1, 2, 3]));
        let graph = order(&[
            task("report", &["fit-*", "raw"], &one),
            task("fit-{k}", &["load-{k}"], &three),
            task("load-{k}", &["raw"], &three),
            task("raw", &[], &one),
        ]);
        let graph = graph.unwrap();
        assert_eq!(graph.kinds, [3, 2, 1, 0]);
        let rows: Vec<_> = (0..8).map(|task| graph.needs.of(task)).collect();
        let expected: [&[u32]; 8] = [&[], &[0], &[0], &[0], &[1], &[2], &[3], &[0, 4, 5, 6]];
        assert_eq!(rows, expected);
        assert!(graph.needs.are_sound(8));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let (one, two) = (single(), of(&[1, 2]));
        let unknown = [task("a", &[], &one), task("b", &["a", "c"], &one)];
        let expected = (1, Some(1), "there is no task `c` to need".to_string());
        assert_eq!(problem(&unknown), expected);
        let itself = [task("a", &["a"], &one)];
        assert_eq!(problem(&itself), (0, Some(0), "`a` needs itself".into()));
        let all = [task("a-{k}", &["a-*"], &two)];
        assert_eq!(problem(&all), (0, Some(0), "`a-1` needs itself".into()));
        let circle = [
            task("a", &["c"], &one),
            task("b", &["a"], &one),
            task("c", &["b"], &one),
            task("d", &["c"], &one),
        ];
        let names = "these tasks need each other: `a` needs `c` needs `b` needs `a`";
        assert_eq!(problem(&circle), (1, Some(0), names.into()));
        let twice = [task("a", &[], &one), task("a", &[], &one)];
        let expected = (1, None, "two tasks would be called `a`".into());
        assert_eq!(problem(&twice), expected);
        let nothing = [task("a", &["x*"], &one)];
        assert!(problem(&nothing).2.contains("no task has a name like `x*`"));
        let bad = [task("a", &["{q}"], &one)];
        assert!(
            problem(&bad)
                .2
                .contains("nothing is known under the name `q`")
        );
    }

    #[test]
    fn rows_of_one_table_are_a_graph_of_their_own() {
        let row = |name: &str, needs: &str| [name, needs].map(|text| Value::Text(text.into()));
        let of_rows = |rows: &[[Value; 2]]| RowSet {
            columns: vec!["name".into(), "after".into()],
            cells: rows.concat(),
            rows: rows.len() as u32,
        };
        let rows = of_rows(&[row("a", ""), row("b", "a"), row("c", "a\nb")]);
        let graph = order(&[task("{name}", &["{after}"], &rows)]).unwrap();
        let found: Vec<_> = (0..3).map(|task| graph.needs.of(task)).collect();
        assert_eq!(found, [&[][..], &[0], &[0, 1]]);
        let rows = of_rows(&[row("a", "b"), row("b", "")]);
        let found = problem(&[task("{name}", &["{after}"], &rows)]);
        assert_eq!(found.2, "`a` needs `b`, which comes after it");
    }

    #[test]
    fn a_graph_of_a_hundred_thousand_edges_is_ordered_at_once() {
        let values: Vec<i64> = (0..50_000).collect();
        let (all, one) = (of(&values), single());
        let graph = order(&[
            task("b-{k}", &["a-{k}", "root"], &all),
            task("a-{k}", &[], &of(&values[..49_999])),
            task("root", &[], &one),
        ]);
        assert!(graph.is_err(), "`a-49999` is missing");
        let graph = order(&[
            task("b-{k}", &["a-{k}"], &of(&values[..49_999])),
            task("a-{k}", &["root"], &all),
            task("root", &[], &one),
        ]);
        assert_eq!(graph.unwrap().needs.edges(), 99_999);
    }
}
