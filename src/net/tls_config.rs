//! The configuration of TLS: certificates, versions, cipher suites, curves, and the
//! requirements on clients' certificates.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime as CertificateTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as RustlsError,
    NamedGroup, RootCertStore, ServerConfig, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use crate::net::certificate::alternative_names;

/// The settings of TLS, with the contents of their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate and its chain to the authority, as PEM.
    pub certificates: Vec<u8>,
    /// The certificate's key, as PEM.
    pub key: PrivateKey,
    /// The certificates that clients' certificates are checked against, as PEM.
    pub client_authorities: Option<Vec<u8>>,
    pub client_auth: ClientAuth,
    /// The names of which a client's certificate must have one; `None` takes any certificate.
    pub allowed_names: Option<Vec<String>>,
    /// The lowest and the highest version.
    pub versions: [TlsVersion; 2],
    /// The suites of TLS 1.2 by their names, the preferred one first; all if the list is empty.
    pub cipher_suites: Vec<String>,
    pub prefers_own_suites: bool,
    /// The curves by Go's names, the preferred one first; all if the list is empty.
    pub curves: Vec<String>,
}

/// A key, which no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(pub Vec<u8>);

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// The requirement on clients' certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nothing.
    #[default]
    None,
    /// A certificate, which may be missing and is not checked.
    Request,
    /// Any certificate.
    RequireAny,
    /// A certificate, which may be missing, but is checked if there is one.
    VerifyIfGiven,
    /// A certificate of an authority.
    RequireAndVerify,
}

/// A version of TLS, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

/// Reasons that TLS cannot be spoken. Names the setting.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{setting}: {reason}")]
    Pem { setting: &'static str, reason: String },
    #[error("cert_file, key_file: {0}")]
    Pair(RustlsError),
    #[error("client_ca_file: {0}")]
    Authorities(String),
    #[error(
        "client_auth_type {0} needs the authorities that client certificates are checked against: set client_ca_file"
    )]
    NoAuthorities(&'static str),
    #[error("client_ca_file: no certificate is requested: set client_auth_type")]
    UnusedAuthorities,
    #[error(
        "client_allowed_sans: it needs client_auth_type RequireAnyClientCert or RequireAndVerifyClientCert"
    )]
    UnusedNames,
    #[error("min_version: it is above max_version")]
    Versions,
    #[error("cipher_suites: {0:?} is not supported; supported are: {1}")]
    CipherSuite(String, String),
    #[error(
        "curve_preferences: {0:?} is not supported; supported are: CurveP256, CurveP384, X25519"
    )]
    Curve(String),
}

impl TlsSettings {
    /// Returns the configuration of a server.
    ///
    /// # Errors
    /// A certificate, key, cipher suite or curve cannot be used.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(self.provider()?);
        let versions = self.versions()?;
        let asked = self.clients(&provider)?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(TlsError::Pair)?;
        let builder = match asked {
            Some(clients) => builder.with_client_cert_verifier(clients),
            None => builder.with_no_client_auth(),
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key.0);
        let key = key.map_err(|error| pem("key_file", &error))?;
        let certificates = certificates("cert_file", &self.certificates)?;
        let mut config = builder.with_single_cert(certificates, key).map_err(TlsError::Pair)?;
        // No session is remembered: a client is checked again on each connection, and takes no
        // memory in between.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.ignore_client_order = self.prefers_own_suites;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
        let [lowest, highest] = self.versions;
        let known = [(TlsVersion::Tls13, &TLS13), (TlsVersion::Tls12, &TLS12)];
        let within = known.iter().filter(|(of, _)| (lowest..=highest).contains(of));
        let versions: Vec<_> = within.map(|(_, version)| *version).collect();
        if versions.is_empty() { Err(TlsError::Versions) } else { Ok(versions) }
    }

    /// Returns the provider of cryptography, with suites and curves in the order of preference.
    fn provider(&self) -> Result<CryptoProvider, TlsError> {
        let mut provider = ring::default_provider();
        if !self.cipher_suites.is_empty() {
            provider.cipher_suites = self.suites(&provider.cipher_suites)?;
        }
        if !self.curves.is_empty() {
            let all = std::mem::take(&mut provider.kx_groups);
            for name in &self.curves {
                let named = match name.as_str() {
                    "CurveP256" => NamedGroup::secp256r1,
                    "CurveP384" => NamedGroup::secp384r1,
                    "X25519" => NamedGroup::X25519,
                    _ => return Err(TlsError::Curve(name.clone())),
                };
                provider.kx_groups.extend(all.iter().filter(|group| group.name() == named));
            }
        }
        Ok(provider)
    }

    /// Returns the suites by their names, and those of TLS 1.3, which cannot be chosen.
    fn suites(
        &self,
        all: &[SupportedCipherSuite],
    ) -> Result<Vec<SupportedCipherSuite>, TlsError> {
        let name = |suite: &SupportedCipherSuite| {
            let name = suite.suite().as_str().unwrap_or_default();
            // Go's names of the suites of TLS 1.3 begin differently from those of others.
            name.replace("TLS13_", "TLS_")
        };
        let of_13 = all.iter().filter(|suite| suite.tls13().is_some());
        let mut suites: Vec<SupportedCipherSuite> = of_13.copied().collect();
        for wanted in &self.cipher_suites {
            let found = all.iter().find(|suite| name(suite) == *wanted);
            let found = found.ok_or_else(|| {
                let names: Vec<String> = all.iter().map(name).collect();
                TlsError::CipherSuite(wanted.clone(), names.join(", "))
            })?;
            if found.tls13().is_none() {
                suites.push(*found);
            }
        }
        Ok(suites)
    }

    /// Returns the verifier of clients' certificates; `None` if none is requested.
    fn clients(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        let is_required =
            matches!(self.client_auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
        if self.allowed_names.is_some() && !is_required {
            return Err(TlsError::UnusedNames);
        }
        let chain = match (self.client_auth, &self.client_authorities) {
            (ClientAuth::None, Some(_)) => return Err(TlsError::UnusedAuthorities),
            (ClientAuth::None, None) => return Ok(None),
            (ClientAuth::Request | ClientAuth::RequireAny, _) => None,
            (ClientAuth::VerifyIfGiven, None) => {
                return Err(TlsError::NoAuthorities("VerifyClientCertIfGiven"));
            }
            (ClientAuth::RequireAndVerify, None) => {
                return Err(TlsError::NoAuthorities("RequireAndVerifyClientCert"));
            }
            (ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify, Some(pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("client_ca_file", pem)? {
                    roots
                        .add(certificate)
                        .map_err(|error| TlsError::Authorities(error.to_string()))?;
                }
                let provider = Arc::clone(provider);
                let chain =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| TlsError::Authorities(error.to_string()))?;
                Some(chain)
            }
        };
        Ok(Some(Arc::new(ClientCertificates {
            chain,
            is_required,
            allowed_names: self.allowed_names.clone(),
            algorithms: provider.signature_verification_algorithms,
        })))
    }
}

/// Returns the certificates of a file, at least one.
fn certificates(
    setting: &'static str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let certificates = certificates.map_err(|error| pem(setting, &error))?;
    if certificates.is_empty() {
        let reason = "it has no certificate as PEM".to_owned();
        return Err(TlsError::Pem { setting, reason });
    }
    Ok(certificates)
}

fn pem(setting: &'static str, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Pem { setting, reason: error.to_string() }
}

/// The verifier of clients' certificates.
#[derive(Debug)]
struct ClientCertificates {
    /// Checks that an authority signed it, and that it is valid; `None` takes any.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    is_required: bool,
    allowed_names: Option<Vec<String>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientCertificates {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.as_ref().map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: CertificateTime,
    ) -> Result<ClientCertVerified, RustlsError> {
        if let Some(chain) = &self.chain {
            chain.verify_client_cert(certificate, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed_names {
            let names = alternative_names(certificate)
                .ok_or(RustlsError::InvalidCertificate(CertificateError::BadEncoding))?;
            if !names.iter().any(|name| allowed.contains(name)) {
                let error = CertificateError::ApplicationVerificationFailure;
                return Err(RustlsError::InvalidCertificate(error));
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
