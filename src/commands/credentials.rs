//! The mutual identification of a command and an exporter: certificates, and a user with a
//! password.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use reqwest::blocking::{Client, ClientBuilder, RequestBuilder};
use reqwest::{Certificate, Identity, redirect};

use crate::config::environment;
use crate::store::open::Unread;

/// The arguments: name, placeholder, variable, help.
const ARGUMENTS: [[&str; 4]; 5] = [
    [
        "ca-file",
        "PATH",
        "STEPMEM_PUSH_CA_FILE",
        "PEM file with the authorities that the exporter's certificate is checked against, instead of the system's",
    ],
    [
        "cert-file",
        "PATH",
        "STEPMEM_PUSH_CERT_FILE",
        "PEM file with the certificate to show to the exporter",
    ],
    [
        "key-file",
        "PATH",
        "STEPMEM_PUSH_KEY_FILE",
        "PEM file with the key of --cert-file, if that file has none",
    ],
    ["user", "NAME", "STEPMEM_PUSH_USER", "User of the exporter, with --password-file"],
    ["password-file", "PATH", "STEPMEM_PUSH_PASSWORD_FILE", "File with the password of --user"],
];

/// The credentials for an exporter, and the authorities that its certificate is checked
/// against.
#[derive(Default)]
pub(super) struct Credentials {
    authorities: Option<Vec<Certificate>>,
    identity: Option<Identity>,
    user: Option<(String, String)>,
}

/// The arguments that [`Credentials::read`] reads.
pub(super) fn credential_args() -> [Arg; 5] {
    ARGUMENTS.map(|[name, value_name, variable, help]| {
        let arg = Arg::new(name).long(name).value_name(value_name);
        arg.help(format!("{help} [env: {variable}]")).help_heading("Access to the exporter")
    })
}

impl Credentials {
    /// Reads the arguments, or the variables where they are not given.
    ///
    /// # Errors
    /// A file cannot be read, or a user has no password.
    pub(super) fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        Self::of(matches, environment::text)
    }

    /// Reads the arguments alone: the variables are for exporters, and for no other program.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub(super) fn given(matches: &ArgMatches) -> anyhow::Result<Self> {
        Self::of(matches, |_| None)
    }

    fn of(
        matches: &ArgMatches,
        variable: impl Fn(&str) -> Option<String>,
    ) -> anyhow::Result<Self> {
        let [ca, cert, key, user, password] = ARGUMENTS.map(|[name, _, its_variable, _]| {
            let given = matches.get_one::<String>(name).cloned();
            given.or_else(|| variable(its_variable))
        });
        let path = |path: Option<String>| path.map(PathBuf::from);
        let user = match (user, path(password)) {
            (Some(user), Some(file)) => {
                let password = String::from_utf8(read(&file)?)
                    .with_context(|| Unread(file.display().to_string()))?;
                Some((user, password.trim_end_matches(['\r', '\n']).to_owned()))
            }
            (None, None) => None,
            (Some(_), None) => anyhow::bail!("--user needs --password-file"),
            (None, Some(_)) => anyhow::bail!("--password-file needs --user"),
        };
        let authorities = path(ca).map(|file| {
            let certificates = Certificate::from_pem_bundle(&read(&file)?);
            let certificates =
                certificates.with_context(|| Unread(file.display().to_string()))?;
            anyhow::ensure!(
                !certificates.is_empty(),
                Unread(format!("{} has no certificate", file.display()))
            );
            Ok(certificates)
        });
        let identity = match (path(cert), path(key)) {
            (None, None) => None,
            (None, Some(_)) => anyhow::bail!("--key-file needs --cert-file"),
            (Some(cert), key) => {
                let mut pem = key.as_deref().map_or_else(|| Ok(Vec::new()), read)?;
                pem.push(b'\n');
                pem.extend(read(&cert)?);
                let identity = Identity::from_pem(&pem);
                Some(identity.with_context(|| cert.display().to_string())?)
            }
        };
        Ok(Self { authorities: authorities.transpose()?, identity, user })
    }

    /// Returns whether there are neither a certificate nor a user to show.
    pub(super) fn are_none(&self) -> bool {
        self.identity.is_none() && self.user.is_none()
    }

    /// Returns whether there is a user with a password.
    pub(super) fn has_password(&self) -> bool {
        self.user.is_some()
    }

    /// Returns a client for one address. It follows no redirect: token, user and certificate
    /// are for that address, and for none to which it redirects.
    pub(super) fn client(&self, address: &str, timeout: Duration) -> ClientBuilder {
        let builder = Client::builder().timeout(timeout).no_proxy();
        let builder = builder.redirect(redirect::Policy::none());
        // Without TLS it does not need the system's certificates, which a small image lacks.
        if address.starts_with("https://") {
            self.encrypt(builder)
        } else {
            builder.tls_certs_only([])
        }
    }

    /// Sets the configuration of TLS.
    fn encrypt(&self, mut builder: ClientBuilder) -> ClientBuilder {
        if let Some(authorities) = &self.authorities {
            builder = builder.tls_certs_only(authorities.iter().cloned());
        }
        if let Some(identity) = &self.identity {
            builder = builder.identity(identity.clone());
        }
        builder
    }

    /// Adds the user and its password to a request.
    pub(super) fn show(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.user {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        }
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| Unread(file.display().to_string()))
}
