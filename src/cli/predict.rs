//! `nodectl predict`: what a trained model says of data.

use super::{
    args::PredictArgs,
    exit::{CliError, Exit, print},
    run, solo,
};
use nodectl_app::settings::Settings;
use nodectl_formats::{self as formats, Array};
use nodectl_http::Client;
use nodectl_train::{self as train, ModelFile};
use nodectl_types::servers::MODEL;
use std::path::{Path, PathBuf};

/// Asks the model in a file; no node is needed.
pub fn predict(args: &PredictArgs) -> Result<Exit, CliError> {
    let path = args.model.as_deref().unwrap_or(Path::new(MODEL));
    answer(
        args,
        &ModelFile::read(path).map_err(|error| CliError::Usage(error.to_string()))?,
    )
}

/// Asks the model of a job.
pub async fn predict_with_job(args: &PredictArgs, settings: &Settings) -> Result<Exit, CliError> {
    let (client, stay) = solo::connect(settings, true).await?;
    let model = model_of(&client, args.job.as_deref().unwrap_or_default()).await;
    stay.end().await;
    answer(args, &model?)
}

/// What a job has left, or the newest checkpoint of one that has left no model.
async fn model_of(client: &Client, job: &str) -> Result<ModelFile, CliError> {
    let results = run::all_results(client, job, false).await?;
    let mut outputs = results
        .iter()
        .flat_map(|result| result.outputs.iter().map(move |output| (result, output)));
    let bytes = match outputs.find(|(_, output)| output.path == MODEL) {
        Some((result, model)) => run::blob_bytes(client, &model.hash, Some(&result.node)).await?,
        None => run::blob_bytes(client, &client.store_checkpoint(job).await?.hash, None).await?,
    };
    let name = PathBuf::from(format!("the model of job {job}"));
    ModelFile::decode(&name, &bytes).map_err(|error| CliError::Usage(error.to_string()))
}

fn answer(args: &PredictArgs, model: &ModelFile) -> Result<Exit, CliError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let prediction = train::predict(model, &args.data, threads).map_err(CliError::Usage)?;
    let Some(path) = &args.output else {
        print(&prediction.to_csv())?;
        return Ok(Exit::Done);
    };
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => {
            std::fs::write(path, prediction.to_csv())
                .map_err(|source| CliError::file("writing", path, source))?;
        }
        Some("npy" | "npz" | "h5" | "safetensors") => {
            let width = prediction.width as u64;
            let array = Array::of_f32(
                vec![prediction.answers.len() as u64 / width, width],
                &prediction.answers,
            );
            let written = formats::write(path, &[("answers", &array)], None);
            written.map_err(|error| CliError::Usage(error.to_string()))?;
        }
        _ => {
            let hint = "name it .csv, or .npy for all answers as an array";
            return Err(CliError::Usage(format!(
                "`{}` names no format of answers\nhint: {hint}",
                path.display()
            )));
        }
    }
    Ok(Exit::Done)
}
