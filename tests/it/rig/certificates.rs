//! Certificates made for a test, and what speaks TLS with them.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::rig::folder::Folder;
use crate::rig::http::{Answer, connect, converse, head};

/// An authority, whose certificate is a file.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The path of its certificate.
    pub file: String,
    pem: String,
}

/// A certificate and its key as files.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Now,
    Past,
}

impl Authority {
    /// Makes one with a file `NAME.pem` in the folder.
    pub fn new(folder: &Folder, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let file = folder.write(&format!("{name}.pem"), &pem);
        Self { issuer: Issuer::new(params, key), file, pem }
    }

    /// Makes a certificate for these names or addresses, with files `NAME.cert.pem` and `NAME.key.pem`.
    pub fn issue(
        &self,
        folder: &Folder,
        name: &str,
        subjects: &[&str],
        validity: Validity,
    ) -> Pair {
        let subjects: Vec<String> = subjects.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(subjects).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        if validity == Validity::Past {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let pair = Pair {
            cert: folder.write(&format!("{name}.cert.pem"), &cert.pem()),
            key: folder.write(&format!("{name}.key.pem"), &key.serialize_pem()),
        };
        std::fs::set_permissions(&pair.key, Permissions::from_mode(0o600)).unwrap();
        pair
    }

    /// The certificate of an exporter on loopback.
    pub fn server(&self, folder: &Folder) -> Pair {
        self.issue(folder, "server", &["127.0.0.1", "localhost"], Validity::Now)
    }

    /// A client that trusts this authority, and shows a certificate if there is one.
    pub fn client(&self, pair: Option<&Pair>) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        TlsClient(Arc::new(match pair {
            Some(Pair { cert, key }) => {
                let chain = CertificateDer::pem_file_iter(cert).unwrap();
                let chain = chain.map(Result::unwrap).collect();
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        }))
    }
}

/// A client that speaks TLS.
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// A connection on which nothing has been said.
    pub fn connect(&self, address: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
        let name = address.ip().into();
        let session = ClientConnection::new(Arc::clone(&self.0), name).unwrap();
        StreamOwned::new(session, connect(address))
    }

    /// Any request, and its answer.
    pub fn request(
        &self,
        address: SocketAddr,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let head = head(method, path, headers, body.len());
        converse(&mut self.connect(address), &head, body.as_bytes())
    }

    pub fn get(&self, address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.request(address, ("GET", path), headers, "")
    }
}
