//! A page that other machines open: TLS, its certificate, the names that it goes by.

use super::{Got, PlayedPage, exchange, read};
use crate::{PageCertificate, PageDoor, PageSettings};
use axum::http::{StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::json;
use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

fn certificate(path: &Path) -> PageCertificate {
    let names = vec!["127.0.0.1".into(), "lab-box".into()];
    PageCertificate::kept_in(path, names).expect("a certificate")
}

/// A page on a network, played on loopback, and a client that knows its certificate.
struct NetworkStage {
    stage: PlayedPage,
    connector: TlsConnector,
    _home: tempfile::TempDir,
}

impl NetworkStage {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("page.pem");
        let door = PageDoor::Network {
            address: Ipv4Addr::LOCALHOST.into(),
            host: "lab-box".into(),
            certificate: certificate(&path),
        };
        let settings = PageSettings {
            door,
            may_write: true,
            ..PageSettings::default()
        };
        let mut roots = RootCertStore::empty();
        let known = CertificateDer::from_pem_file(&path).expect("a certificate");
        roots.add(known).expect("it can be trusted");
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            stage: PlayedPage::with(settings).await,
            connector: TlsConnector::from(Arc::new(client)),
            _home: home,
        }
    }

    /// Asks by TLS, as a browser that calls the page `host` and has come through these headers.
    async fn get(&self, host: &str, path: &str, headers: &[(&str, &str)]) -> Got {
        let name = ServerName::try_from("lab-box").expect("a name");
        let stream = self.connector.connect(name, self.stage.connect().await);
        let mut request = hyper::Request::get(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::<Bytes>::default()).expect("a request");
        let stream = stream.await.expect("the certificate is known");
        read(exchange(stream, request).await).await
    }
}

#[tokio::test]
async fn over_a_network_the_page_and_its_cookie_need_tls() {
    let page = NetworkStage::new().await;
    page.stage.say("/v1/nodes", json!([]));
    let host = format!("127.0.0.1:{}", page.stage.port);
    let token = format!("/?token={}", page.stage.token);
    assert_eq!(
        page.get(&host, "/v1/nodes", &[]).await.status,
        StatusCode::UNAUTHORIZED
    );
    let opened = page.get(&host, &token, &[]).await;
    assert_eq!(opened.status, StatusCode::SEE_OTHER);
    let cookie = opened.headers[header::SET_COOKIE]
        .to_str()
        .expect("text")
        .to_string();
    assert!(
        cookie.starts_with("__Host-nodectl-") && cookie.contains("Secure"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().expect("a value");
    let ours = ("cookie", cookie);
    let origin = format!("https://{host}");
    for (host, origin, status) in [
        (host.as_str(), origin.as_str(), StatusCode::OK),
        ("10.1.2.3:8443", "https://10.1.2.3:8443", StatusCode::OK),
        ("[fd00::1]:8443", "https://[fd00::1]:8443", StatusCode::OK),
        ("LAB-BOX:1", "https://LAB-BOX:1", StatusCode::OK),
        (
            "lab-box.evil.example",
            "https://lab-box.evil.example",
            StatusCode::FORBIDDEN,
        ),
        (
            "10.evil.example",
            "https://10.evil.example",
            StatusCode::FORBIDDEN,
        ),
        (
            host.as_str(),
            &origin.replace("https", "http"),
            StatusCode::FORBIDDEN,
        ),
        (
            host.as_str(),
            "https://10.1.2.3:8443",
            StatusCode::FORBIDDEN,
        ),
    ] {
        let got = page
            .get(host, "/v1/nodes", &[ours, ("origin", origin)])
            .await;
        assert_eq!(got.status, status, "{host} {origin}");
    }
    let mut plain = page.stage.connect().await;
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n");
    plain
        .write_all(request.as_bytes())
        .await
        .expect("it listens");
    let mut answer = Vec::new();
    // A reset is as good an end as an alert.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(
        !answer.starts_with(b"HTTP"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn who_says_nothing_keeps_nobody_waiting() {
    let page = NetworkStage::new().await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(page.stage.connect().await);
    }
    let host = format!("127.0.0.1:{}", page.stage.port);
    assert_eq!(
        page.get(&host, "/", &[]).await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[test]
fn the_certificate_is_kept_until_it_is_old_and_is_its_owners() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("page.pem");
    let first = certificate(&path).fingerprint();
    assert_eq!(first.split(':').count(), 32, "{first}");
    assert_eq!(certificate(&path).fingerprint(), first);
    let mode = fs::metadata(&path)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let years_ago = SystemTime::now() - Duration::from_secs(701 * 24 * 3600);
    let file = File::options()
        .write(true)
        .open(&path)
        .expect("it is there");
    file.set_modified(years_ago).expect("it is ours");
    assert_ne!(certificate(&path).fingerprint(), first);
}

#[test]
fn a_damaged_certificate_is_an_error_that_says_what_to_do() {
    let home = tempfile::tempdir().expect("a directory");
    let (path, other) = (home.path().join("page.pem"), home.path().join("other.pem"));
    certificate(&path);
    certificate(&other);
    let whole = fs::read_to_string(&path).expect("it is there");
    let other = fs::read_to_string(&other).expect("it is there");
    let key_at = |text: &str| text.find("-----BEGIN PRIVATE").expect("a key");
    let another_key = whole[..key_at(&whole)].to_string() + &other[key_at(&other)..];
    for damaged in ["", "nothing", &whole[..key_at(&whole)], &another_key] {
        fs::write(&path, damaged).expect("it is ours");
        let refused = PageCertificate::kept_in(&path, Vec::new()).expect_err("it is damaged");
        assert!(refused.to_string().contains("remove it"), "{refused}");
    }
}
