//! TLS for a page that other machines open: a certificate of its own, which a person compares by
//! its fingerprint, and a listener whose handshakes hold nobody up.

use axum::serve::Listener;
use nodectl_ports::atomic;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use std::{fs, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        version::TLS13,
    },
    server::TlsStream,
};

/// Connections whose handshake is under way; more wait.
const MOST_HANDSHAKES: usize = 32;
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// Browsers refuse certificates that are good for longer than 825 days.
const GOOD_FOR: Duration = Duration::from_secs(825 * 24 * 3600);
const RENEWED_AFTER: Duration = Duration::from_secs(700 * 24 * 3600);

/// A certificate that nobody else has signed, and its key.
#[derive(Debug)]
pub struct PageCertificate {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

/// No certificate could be had.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("the page's certificate {path}: {source}")]
    File { path: String, source: io::Error },
    #[error(
        "the page's certificate {path} is damaged: {why}\nhint: remove it; another one is made"
    )]
    Damaged { path: String, why: String },
    #[error("the page's certificate cannot be made: {0}")]
    Making(String),
}

impl PageCertificate {
    /// The certificate in the PEM file `path`, readable by its owner only. Where there is none, or
    /// one of 700 days, it is made anew for `names`, which are addresses or names of this machine.
    pub fn kept_in(path: &Path, names: Vec<String>) -> Result<Self, CertificateError> {
        let failed = |source| CertificateError::File {
            path: path.display().to_string(),
            source,
        };
        let is_fresh = match fs::metadata(path).and_then(|file| file.modified()) {
            Ok(modified) => modified.elapsed().is_ok_and(|age| age < RENEWED_AFTER),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
        };
        if !is_fresh {
            atomic::write(path, made_for(names)?.as_bytes(), 0o600).map_err(failed)?;
        }
        let text = fs::read(path).map_err(failed)?;
        let damaged = |why: String| CertificateError::Damaged {
            path: path.display().to_string(),
            why,
        };
        let certificate = CertificateDer::from_pem_slice(&text);
        let key = PrivateKeyDer::from_pem_slice(&text);
        let page = Self {
            certificate: certificate.map_err(|why| damaged(why.to_string()))?,
            key: key.map_err(|why| damaged(why.to_string()))?,
        };
        // Also whether they belong together.
        page.settings().map_err(damaged)?;
        Ok(page)
    }

    /// SHA-256 of the certificate, as browsers show it.
    pub fn fingerprint(&self) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.certificate);
        let bytes = digest.as_ref().iter().map(|byte| format!("{byte:02X}"));
        bytes.collect::<Vec<_>>().join(":")
    }

    fn settings(&self) -> Result<ServerConfig, String> {
        let mut settings = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| why.to_string())?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(|why| why.to_string())?;
        settings.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(settings)
    }
}

/// A new certificate and its key (ECDSA on P-256, which every browser knows) as PEM text.
fn made_for(names: Vec<String>) -> Result<String, CertificateError> {
    let failed = |why: rcgen::Error| CertificateError::Making(why.to_string());
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "nodectl's page");
    params.not_before = std::time::SystemTime::now().into();
    params.not_after = (std::time::SystemTime::now() + GOOD_FOR).into();
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

/// Connections whose handshake is done. One that never ends its handshake keeps no other waiting.
pub struct TlsListener {
    accepted: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    addr: SocketAddr,
    accepting: JoinHandle<()>,
}

impl TlsListener {
    pub fn new(listener: TcpListener, certificate: &PageCertificate) -> io::Result<Self> {
        let settings = certificate.settings().map_err(io::Error::other)?;
        let addr = listener.local_addr()?;
        let (send, accepted) = mpsc::channel(1);
        let acceptor = TlsAcceptor::from(Arc::new(settings));
        let accepting = tokio::spawn(accept(listener, acceptor, send));
        Ok(Self {
            accepted,
            addr,
            accepting,
        })
    }
}

async fn accept(
    mut listener: TcpListener,
    acceptor: TlsAcceptor,
    send: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    let slots = Arc::new(Semaphore::new(MOST_HANDSHAKES));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        // This one waits where the system has no more files to give.
        let (stream, addr) = Listener::accept(&mut listener).await;
        let (acceptor, send) = (acceptor.clone(), send.clone());
        tokio::spawn(async move {
            let shaken = timeout(LONGEST_HANDSHAKE, acceptor.accept(stream)).await;
            drop(slot);
            if let Ok(Ok(stream)) = shaken {
                // Nobody listens any more when the page has ended.
                let _ = send.send((stream, addr)).await;
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
