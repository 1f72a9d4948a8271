"""Differences between the kept files of two runs."""

from fairlead.cluster.kept_code import MOST_LINES, KeptCode, KeptFile, file_differences


def kept(files: dict[str, bytes | None]) -> KeptCode:
    """Code of these contents; None for one that is kept no longer."""
    listed = tuple(KeptFile(path=path, size=0, digest=str(content)) for path, content in files.items())
    return KeptCode(files=listed, read=files.get)


def differences(one: bytes | None, other: bytes | None) -> list[str]:
    return list(file_differences(kept({"a": one}), kept({"a": other})))


def test_texts_differ_by_lines_and_only_binary_files_are_called_so() -> None:
    assert differences(b"x\n", b"y\n")[-2:] == ["-x", "+y"]
    assert differences(b"\0", b"y\n") == ["Binary files a/a and b/a differ"]


def test_a_long_text_is_said_to_be_long() -> None:
    long = b"x\n" * (MOST_LINES + 1)
    assert differences(long, b"x\n") == ["Files a/a and b/a differ; a text of more than 5,000 lines is not compared"]
    assert len(differences(long[2:], b"x\n")) > MOST_LINES


def test_a_file_that_is_kept_no_longer_is_said_to_be_gone() -> None:
    assert differences(None, b"x\n") == ["Files a/a and b/a differ; one of them is kept no longer"]
