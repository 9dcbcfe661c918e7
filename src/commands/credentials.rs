//! The mutual identification of a command and an exporter: certificates, and a user with a
//! password.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgMatches};
use reqwest::blocking::{Client, ClientBuilder, RequestBuilder};
use reqwest::{Certificate, Identity, redirect};

use crate::commands::args::WrongArgument;
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
            let given = given.map(|value| (format!("--{name}"), value));
            given.or_else(|| Some((its_variable.to_owned(), variable(its_variable)?)))
        });
        let file = |given: Option<(String, String)>| {
            given.map(|(source, path)| NamedFile { source, path: path.into() })
        };
        let user = match (user, file(password)) {
            (Some((_, user)), Some(file)) => Some((user, file.password()?)),
            (None, None) => None,
            (Some(_), None) => return Err(needs("--user", "--password-file")),
            (None, Some(_)) => return Err(needs("--password-file", "--user")),
        };
        let authorities = file(ca).map(|file| file.authorities());
        let identity = match (file(cert), file(key)) {
            (None, None) => None,
            (None, Some(_)) => return Err(needs("--key-file", "--cert-file")),
            (Some(cert), key) => {
                let mut pem = key.map_or_else(|| Ok(Vec::new()), |key| key.read())?;
                pem.push(b'\n');
                pem.extend(cert.read()?);
                Some(Identity::from_pem(&pem).with_context(|| cert.named())?)
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

fn needs(argument: &str, other: &str) -> anyhow::Error {
    anyhow::Error::msg(WrongArgument(format!("{argument} needs {other}")))
}

/// A file, with the argument or variable that names it.
pub(super) struct NamedFile {
    pub(super) source: String,
    pub(super) path: PathBuf,
}

impl NamedFile {
    /// Reads a token, without the white space around it.
    ///
    /// # Errors
    /// The file cannot be read, or has none.
    pub(super) fn token(&self) -> anyhow::Result<String> {
        let text = self.text()?;
        let token = text.trim();
        self.ensure(!token.is_empty(), "no token")?;
        Ok(token.to_owned())
    }

    fn password(&self) -> anyhow::Result<String> {
        let text = self.text()?;
        let password = text.trim_end_matches(['\r', '\n']);
        self.ensure(!password.is_empty(), "no password")?;
        Ok(password.to_owned())
    }

    fn authorities(&self) -> anyhow::Result<Vec<Certificate>> {
        let certificates = Certificate::from_pem_bundle(&self.read()?);
        let certificates = certificates.with_context(|| self.named())?;
        self.ensure(!certificates.is_empty(), "no certificate")?;
        Ok(certificates)
    }

    fn text(&self) -> anyhow::Result<String> {
        String::from_utf8(self.read()?).with_context(|| self.named())
    }

    fn read(&self) -> anyhow::Result<Vec<u8>> {
        fs::read(&self.path).with_context(|| self.named())
    }

    fn ensure(&self, is_right: bool, lack: &str) -> anyhow::Result<()> {
        anyhow::ensure!(is_right, Unread(format!("{}: the file has {lack}", self.named())));
        Ok(())
    }

    /// Returns the name of the file in an error.
    fn named(&self) -> Unread {
        Unread(format!("{}: {}", self.source, self.path.display()))
    }
}
