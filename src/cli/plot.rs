//! `results JOB --plot x:y[:colour]`: one point a task, the best one marked, as an SVG or PNG file.
//! Here is decided which results are shown, which is the best, and where the file goes.

use super::{
    args::{GoalArg, PlotSpec, ResultsArgs},
    exit::{CliError, Exit, print},
    run,
    selection::{column, goal_of, params, unknown},
};
use nodectl_http::Client;
use nodectl_plot::{Coordinate, PlotPoint, Scatter};
use nodectl_ports::say::tell;
use nodectl_types::{text::escaped, units::counted};
use nodectl_wire::api::{Job, StatusName, TaskResult};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// Points beyond this are left out: nobody can tell them apart.
const MOST_POINTS: usize = 50_000;

/// A task in the picture.
#[derive(Clone, Debug, PartialEq)]
struct PlottedTask {
    task: u32,
    /// Only a point that is done can be the best.
    point: PlotPoint,
    /// The task's parameters, for the caption.
    params: String,
}

/// Writes the picture of the results so far, and prints the file's name.
pub async fn plot(client: &Client, args: &ResultsArgs) -> Result<Exit, CliError> {
    let Some(spec) = &args.plot else {
        return Ok(Exit::Done);
    };
    let job = client.job(&args.name.job).await?;
    let path = match &args.plot_to {
        Some(path) => path.clone(),
        None => PathBuf::from(format!(
            "{}.svg",
            run::default_directory(&job.line.name, &job.line.id).display()
        )),
    };
    let format = PlotFormat::of(&path)?;
    let results = run::all_results(client, &args.name.job, args.all).await?;
    let points = points(&results, spec).map_err(CliError::Usage)?;
    let goal = args
        .goal
        .or_else(|| goal_of(&spec.y, job.work.sweep.as_ref()));
    let best = goal.and_then(|goal| best(&points, goal));
    let title = format!("{} ({})", job.line.name, counted(points.len(), "task"));
    let picture = drawn(&title, spec, &points, best, format)
        .map_err(|why| CliError::Usage(format!("plotting: {why}")))?;
    std::fs::write(&path, picture).map_err(|source| CliError::file("writing", &path, source))?;
    if let Some(best) = best {
        tell!("best: {}", escaped(&caption(&points[best], spec)));
    } else if goal.is_none() {
        tell!(
            "no point is marked as the best, because the job has no [sweep] of `{}`\n\
             hint: --goal min marks the least, --goal max the greatest",
            escaped(&spec.y)
        );
    }
    print(&format!("{}\n", path.display()))?;
    Ok(Exit::Done)
}

/// One column of the results over another, as SVG that stands inside a page; none where there is
/// nothing to draw.
pub fn picture(job: &Job, results: &[TaskResult], x: &str, y: &str) -> Option<String> {
    let spec = PlotSpec {
        x: x.into(),
        y: y.into(),
        colour: None,
    };
    let points = points(results, &spec).ok()?;
    let goal = goal_of(y, job.work.sweep.as_ref());
    let best = goal.and_then(|goal| best(&points, goal));
    let title = format!("{y} over {x}");
    let svg = drawn(&title, &spec, &points, best, PlotFormat::Svg).ok()?;
    let svg = String::from_utf8(svg).ok()?;
    // Inside HTML it needs no declarations.
    let begin = svg.find("<svg")?;
    Some(svg[begin..].replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1))
}

/// What kind of file a picture becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlotFormat {
    Svg,
    Png,
}

impl PlotFormat {
    /// By the ending of the file's name.
    fn of(path: &Path) -> Result<Self, CliError> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(CliError::Usage(format!(
                "a plot is an SVG or PNG file, not `{}`\nhint: a name that ends in .svg or .png",
                path.display()
            ))),
        }
    }
}

fn points(results: &[TaskResult], spec: &PlotSpec) -> Result<Vec<PlottedTask>, String> {
    let mut points = Vec::new();
    for result in results {
        let Some(y) = column(result, &spec.y).as_ref().and_then(number) else {
            continue;
        };
        let Some(x) = column(result, &spec.x).as_ref().and_then(Coordinate::of) else {
            continue;
        };
        let colour = spec
            .colour
            .as_ref()
            .and_then(|name| Coordinate::of(&column(result, name)?));
        let done = result.status == StatusName::Done;
        points.push(PlottedTask {
            task: result.task,
            point: PlotPoint { x, y, colour, done },
            params: params(result),
        });
    }
    if !points
        .iter()
        .any(|task: &PlottedTask| task.point.y.is_finite())
    {
        return Err(nothing_to_plot(results, spec));
    }
    points.truncate(MOST_POINTS);
    Ok(points)
}

/// Why there is no point, and what could be plotted instead.
fn nothing_to_plot(results: &[TaskResult], spec: &PlotSpec) -> String {
    if results.is_empty() {
        return "the job has no results yet\nhint: `nodectl attach` waits for them".into();
    }
    match [&spec.x, &spec.y]
        .into_iter()
        .find_map(|name| unknown(results, name))
    {
        Some(unknown) => unknown,
        None => format!(
            "no result has a number for `{}` together with a `{}`",
            spec.y, spec.x
        ),
    }
}

/// A number, also one that JSON has as a string.
fn number(value: &Json) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// The index of the best point that is done; of equals the first task's.
fn best(points: &[PlottedTask], goal: GoalArg) -> Option<usize> {
    let sign = match goal {
        GoalArg::Min => 1.0,
        GoalArg::Max => -1.0,
    };
    let counts = |task: &PlottedTask| task.point.done && task.point.y.is_finite();
    let done = points.iter().enumerate().filter(|(_, point)| counts(point));
    let order = |(_, a): &(usize, &PlottedTask), (_, b): &(usize, &PlottedTask)| {
        (sign * a.point.y)
            .total_cmp(&(sign * b.point.y))
            .then(a.task.cmp(&b.task))
    };
    done.min_by(order).map(|(index, _)| index)
}

fn caption(task: &PlottedTask, spec: &PlotSpec) -> String {
    format!(
        "{} = {} (task {}: {})",
        spec.y,
        nodectl_plot::number(task.point.y),
        task.task,
        task.params
    )
}

/// The picture as the bytes of its file.
fn drawn(
    title: &str,
    spec: &PlotSpec,
    tasks: &[PlottedTask],
    best: Option<usize>,
    format: PlotFormat,
) -> Result<Vec<u8>, String> {
    let points: Vec<PlotPoint> = tasks.iter().map(|task| task.point.clone()).collect();
    let scatter = Scatter {
        title,
        x: &spec.x,
        y: &spec.y,
        colour: spec.colour.as_deref(),
        points: &points,
        best: best.map(|best| (best, caption(&tasks[best], spec))),
    };
    let file = match format {
        PlotFormat::Svg => scatter.svg().map(String::into_bytes),
        PlotFormat::Png => scatter.png(),
    };
    file.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_wire::api::SweepView;
    use serde_json::json;

    fn svg(title: &str, spec: &PlotSpec, tasks: &[PlottedTask], best: Option<usize>) -> String {
        let file = drawn(title, spec, tasks, best, PlotFormat::Svg).expect("it can be drawn");
        String::from_utf8(file).expect("SVG is text")
    }

    fn result(task: u32, params: Json, value: Json, status: StatusName) -> TaskResult {
        let result = json!({
            "task": task, "params": params, "status": status, "attempt": "1.1", "node": "ab", "started_ms": 0, "seconds": 1.5,
            "cpu_seconds": 1.0, "max_rss_bytes": 0, "value": value, "outputs": [],
            "stdout": {"tail": "", "complete": true, "total_bytes": 0},
            "stderr": {"tail": "", "complete": true, "total_bytes": 0},
        });
        serde_json::from_value(result).expect("a result")
    }

    fn sweep() -> Vec<TaskResult> {
        let rates = [1e-4f64, 1e-3, 1e-2, 1e-1, 1.0];
        let each = rates.iter().enumerate().map(|(task, lr)| {
            let accuracy = 0.9 - (lr.log10() + 2.0).abs() / 10.0;
            let value = json!({"accuracy": accuracy, "test": {"loss": 1.0 - accuracy}});
            result(
                task as u32,
                json!({"lr": lr, "act": if task % 2 == 0 { "relu" } else { "tanh" }}),
                value,
                StatusName::Done,
            )
        });
        let mut all: Vec<_> = each.collect();
        all.push(result(
            5,
            json!({"lr": 3.0, "act": "relu"}),
            json!({"step": 2, "accuracy": 0.99}),
            StatusName::Stopped,
        ));
        all
    }

    fn spec(text: &str) -> PlotSpec {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_plotted_is_read() {
        assert_eq!(spec("lr:accuracy").colour, None);
        assert_eq!(spec("a:b: c ").colour.as_deref(), Some("c"));
        for bad in ["lr", "", ":y", "x:", "a:b:c:d"] {
            assert!(bad.parse::<PlotSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_best_is_done_and_as_the_goal_has_it() {
        let points = points(&sweep(), &spec("lr:accuracy")).unwrap();
        assert_eq!(
            (
                points.len(),
                best(&points, GoalArg::Max),
                best(&points, GoalArg::Min)
            ),
            (6, Some(2), Some(0))
        );
        let sweep = SweepView {
            metric: "accuracy".into(),
            goal: "min".into(),
        };
        assert_eq!(goal_of("accuracy", Some(&sweep)), Some(GoalArg::Min));
        assert_eq!(goal_of("test.accuracy", Some(&sweep)), Some(GoalArg::Min));
        // What nobody said is not guessed.
        assert_eq!(goal_of("test.loss", Some(&sweep)), None);
        assert_eq!(goal_of("loss", None), None);
    }

    #[test]
    fn the_picture_names_its_axes_and_the_best() {
        let spec = spec("lr:accuracy:act");
        let points = points(&sweep(), &spec).unwrap();
        let svg = self::svg("digits", &spec, &points, best(&points, GoalArg::Max));
        for part in [
            "<svg",
            "lr (log scale)",
            "accuracy",
            "relu",
            "tanh",
            "0.0001",
            "best: accuracy = 0.9 (task 2",
        ] {
            assert!(svg.contains(part), "no `{part}` in {svg}");
        }
        let by_word = self::spec("act:test.loss:lr");
        let points = self::points(&sweep(), &by_word).unwrap();
        let svg = self::svg("<digits> & more", &by_word, &points, None);
        assert!(
            svg.contains("relu") && svg.contains("&lt;digits&gt; &amp; more"),
            "{svg}"
        );
    }

    #[test]
    fn what_has_no_place_on_the_axis_is_marked_on_its_edge() {
        let losses = [
            json!(0.3),
            json!(0.4),
            json!(0.5),
            json!(5.97e258),
            json!("NaN"),
            json!("Infinity"),
        ];
        let results: Vec<_> = losses
            .into_iter()
            .zip(0..)
            .map(|(loss, task)| {
                result(
                    task,
                    json!({"lr": task}),
                    json!({"loss": loss}),
                    StatusName::Done,
                )
            })
            .collect();
        let spec = spec("lr:loss");
        let points = points(&results, &spec).unwrap();
        assert_eq!(
            (
                points.len(),
                best(&points, GoalArg::Min),
                best(&points, GoalArg::Max)
            ),
            (6, Some(0), Some(3))
        );
        let svg = self::svg("sweep", &spec, &points, best(&points, GoalArg::Min));
        assert!(
            svg.contains("3 tasks beyond the axis: 1 NaN, 1 infinite, 1 up to 5.97e258"),
            "{svg}"
        );
        assert_eq!(svg.matches("<polygon").count(), 3, "{svg}");
        assert!(svg.contains("0.4") && !svg.contains("e100"), "{svg}");
        let finite = [json!("NaN")]
            .map(|loss| result(0, json!({"lr": 1}), json!({"loss": loss}), StatusName::Done));
        assert!(self::points(&finite, &spec).is_err());
    }

    #[test]
    fn one_point_alone_makes_a_picture() {
        let one = points(
            &[result(0, json!({"k": 3}), json!(5), StatusName::Done)],
            &spec("k:value"),
        )
        .unwrap();
        let svg = svg("one", &spec("k:value"), &one, Some(0));
        assert!(svg.contains("best: value = 5"));
    }

    #[test]
    fn what_cannot_be_plotted_is_told_with_what_can() {
        let told = points(&sweep(), &spec("lr:acuracy")).unwrap_err();
        assert!(
            told.contains("no result has a `acuracy`") && told.contains("did you mean `accuracy`?"),
            "{told}"
        );
        assert!(
            points(&[], &spec("lr:accuracy"))
                .unwrap_err()
                .contains("no results yet")
        );
        assert!(
            points(&sweep(), &spec("lr:act"))
                .unwrap_err()
                .contains("a number for `act`")
        );
        let refused = PlotFormat::of(Path::new("a.pdf")).expect_err("it is no picture of ours");
        assert!(refused.to_string().contains(".svg or .png"), "{refused}");
    }
}
