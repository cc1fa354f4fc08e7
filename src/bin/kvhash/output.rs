//! Where bytes go: standard output, or a file that appears once it is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

/// An output, to be [finished](Output::finish). One that is dropped leaves no file behind.
pub(crate) struct Output {
    name: String,
    encoder: Encoder,
}

enum Encoder {
    Plain(Target),
    Gzip(GzEncoder<Target>),
    Zstd(zstd::Encoder<'static, Target>),
}

enum Target {
    Stdout(io::Stdout),
    /// What is there already and is no ordinary file: a device, a named pipe.
    Special(File),
    /// The file under construction, and the name that it will have.
    Temporary(NamedTempFile, PathBuf),
}

impl Output {
    /// Standard output where there is no path.
    pub(crate) fn create(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            let encoder = Encoder::Plain(Target::Stdout(io::stdout()));
            return Ok(Self { name: "standard output".into(), encoder });
        };
        let name = path.display().to_string();
        let encoder = Target::open(path)
            .and_then(|target| Encoder::new(target, path))
            .with_context(|| format!("cannot write {name}"))?;
        Ok(Self { name, encoder })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.encoder.writer().write_all(bytes).with_context(|| self.failure())
    }

    /// Hands on what is held back, for a reader that waits at the other end.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match &mut self.encoder {
            Encoder::Plain(target) => target.flush().with_context(|| self.failure()),
            // A flush costs a compressed stream some of its compression.
            _ => Ok(()),
        }
    }

    /// Ends the output; a file gets its name now.
    pub(crate) fn finish(self) -> Result<()> {
        let failure = self.failure();
        let finished = match self.encoder {
            Encoder::Plain(target) => Ok(target),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        finished
            .and_then(|mut target| {
                target.flush()?;
                match target {
                    Target::Temporary(file, path) => file.persist(path).map(drop)?,
                    Target::Stdout(_) | Target::Special(_) => {}
                }
                Ok(())
            })
            .with_context(|| failure)
    }

    fn failure(&self) -> String {
        format!("cannot write {}", self.name)
    }
}

impl Encoder {
    fn new(target: Target, path: &Path) -> io::Result<Self> {
        Ok(match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("gz") => Self::Gzip(GzEncoder::new(target, Compression::default())),
            Some("zst") => Self::Zstd(zstd::Encoder::new(target, zstd::DEFAULT_COMPRESSION_LEVEL)?),
            _ => Self::Plain(target),
        })
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(target) => target,
            Self::Gzip(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
        }
    }
}

impl Target {
    fn open(path: &Path) -> io::Result<Self> {
        // A link stays a link: what it points to is replaced.
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(_) if path.is_symlink() => {
                return Err(io::Error::other("it is a link that leads nowhere"));
            }
            Err(_) => path.to_owned(),
        };
        let old = fs::metadata(&path);
        match &old {
            Ok(metadata) if metadata.is_dir() => {
                return Err(io::Error::other(anyhow!("it is a directory")));
            }
            Ok(metadata) if !metadata.is_file() => {
                return Ok(Self::Special(File::options().write(true).open(&path)?));
            }
            Ok(metadata) if metadata.permissions().readonly() => {
                return Err(io::Error::from(io::ErrorKind::PermissionDenied));
            }
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".kvhash-").suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // A file that is replaced keeps its mode; a new one gets what the umask leaves.
            let permissions =
                old.map_or(fs::Permissions::from_mode(0o666), |old| old.permissions());
            builder.permissions(permissions);
        }
        // Its error would name the temporary file, of which nobody has heard.
        fs::metadata(folder)?;
        let file = builder.tempfile_in(folder).map_err(|error| error.kind())?;
        Ok(Self::Temporary(file, path))
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::Special(file) => file.write(bytes),
            Self::Temporary(file, _) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::Special(file) => file.flush(),
            Self::Temporary(file, _) => file.flush(),
        }
    }
}
