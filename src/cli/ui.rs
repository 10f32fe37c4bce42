//! `nodectl ui`: the web page of the cluster, for browsers on this machine, or on others by TLS.

use super::{
    args::UiArgs,
    confirm::confirm,
    exit::{CliError, Exit, print},
    signals,
};
use nodectl_app::{machine, settings::Settings};
use nodectl_http::Client;
use nodectl_ports::say::tell;
use nodectl_ui::{PageCertificate, PageDoor, PageError, PageServer, PageSettings};

/// Serves the page until Ctrl-C or SIGTERM.
pub async fn ui(client: &Client, settings: &Settings, args: &UiArgs) -> Result<Exit, CliError> {
    let node = client.node().await?;
    let Some(door) = door(settings, args)? else {
        tell!("the page is not served");
        return Ok(Exit::Failed);
    };
    let metrics_token = args.metrics.then(|| metrics_token(settings)).transpose()?;
    let fingerprint = match &door {
        PageDoor::Loopback => None,
        PageDoor::Network { certificate, .. } => Some(certificate.fingerprint()),
    };
    let settings = PageSettings {
        door,
        port: args.port,
        may_write: args.write,
        metrics_token,
    };
    let next = |address: &str| {
        tell!("the page was opened; for another browser:");
        // A reader that has gone wants no other address.
        let _ = print(&format!("{address}\n"));
    };
    let server = PageServer::bind(client.clone(), settings, next)
        .await
        .map_err(refused)?;
    let stop = signals::end()?;
    let (name, port) = (node.name, server.port());
    print(&format!("{}\n", server.address()))?;
    tell!("the page of {name}'s cluster; the address opens it once, Ctrl-C ends it");
    match fingerprint {
        None => tell!(
            "from another machine: `ssh -N -L {port}:127.0.0.1:{port} HOST` first, HOST being this one"
        ),
        Some(fingerprint) => tell!(
            "the browser shows a warning once: go on only if the certificate's SHA-256 fingerprint is\n{fingerprint}"
        ),
    }
    if args.write {
        tell!("whoever opens it may cancel and retry jobs, and drain nodes");
    }
    let served = server.serve(stop).await;
    served.map_err(|source| CliError::File {
        doing: "serving the page".into(),
        source,
    })?;
    Ok(Exit::Done)
}

/// What programs read `/metrics` with: the same each time.
fn metrics_token(settings: &Settings) -> Result<String, CliError> {
    let path = settings.node.data_dir.join("metrics-token");
    let token = nodectl_ui::metrics_token(&path)
        .map_err(|source| CliError::file("keeping the token in", &path, source))?;
    tell!("/metrics is read with the token in {}", path.display());
    Ok(token)
}

/// Where the page is served; none if the person who was asked does not want it served there.
fn door(settings: &Settings, args: &UiArgs) -> Result<Option<PageDoor>, CliError> {
    let Some(address) = args.listen else {
        return Ok(Some(PageDoor::Loopback));
    };
    if address.is_loopback() {
        return Err(CliError::Usage(format!(
            "--listen {address}: other machines do not reach that address\n\
             hint: without --listen the page is for this machine"
        )));
    }
    let may = match args.write {
        false => "sees",
        true => "may cancel and retry jobs and drain nodes, and sees",
    };
    let warning = format!(
        "Other machines will reach the page at {address}. Whoever has the address that is printed {may}\n\
         all jobs, their logs and results. Do not send it by mail or chat.\n\
         Serve the page there?"
    );
    let hint = "--yes serves it without asking; without --listen it is for this machine only";
    if !args.yes && !confirm(&format!("--listen {address}"), &warning, hint)? {
        return Ok(None);
    }
    let host = machine::describe().hostname;
    let mut names = vec![host.clone(), "localhost".into()];
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    let path = settings.node.data_dir.join(format!("page-{address}.pem"));
    let certificate = PageCertificate::kept_in(&path, names);
    Ok(Some(PageDoor::Network {
        address,
        host,
        certificate: certificate.map_err(|why| CliError::Usage(why.to_string()))?,
    }))
}

fn refused(error: PageError) -> CliError {
    match error {
        PageError::Listen { .. } => CliError::Usage(error.to_string()),
        PageError::NoRandomness => CliError::Node(error.into()),
    }
}
