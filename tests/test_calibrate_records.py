"""Bad records are named by file and row; good rows are still used."""

import pytest

from perfmodel.calibrate.checks import other_devices, slow_groups
from perfmodel.calibrate.exclude import exclude
from perfmodel.calibrate.records import read_records
from perfmodel.catalog import load_device
from perfmodel.cost.machine import Rates
from perfmodel.errors import BadInput

HEAD = "op,dtype,kernel,m,n,k,latency_us,device,software,clock_mhz"


def folder(tmp_path, *rows, name="gemm.csv", head=HEAD):
    (tmp_path / name).write_text("\n".join([head, *rows]) + "\n")
    return [tmp_path]


def row(m=4096, n=4096, k=4096, latency="250", dtype="bf16", kernel="linear"):
    return f"gemm,{dtype},{kernel},{m},{n},{k},{latency},dev,soft,1980"


def messages(records):
    return [problem.message for problem in records.problems]


def test_good_rows_become_columns_and_unknown_columns_are_ignored(tmp_path):
    records = read_records(folder(tmp_path, row(), row(m=64, latency="12.5")))
    rows = records.ops["gemm"]
    assert rows["m"].tolist() == [4096, 64]
    assert rows["latency_s"].tolist() == pytest.approx([2.5e-4, 1.25e-5])
    assert records.problems == []
    assert records.files[0].rows == records.seen == 2
    assert len(records.files[0].sha256) == 64


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(latency="-3"), "latency_us=-3 is not above zero"),
        (row(latency="0"), "latency_us=0 is not above zero"),
        (row(latency="fast"), 'latency_us="fast" is not a number'),
        (row(latency="nan"), 'latency_us="nan" is not a number'),
        (row(m="many"), 'm="many" is not a positive whole number'),
        (row(m="0"), 'm="0" is not a positive whole number'),
        (row(m="1.5"), 'm="1.5" is not a positive whole number'),
        (row(dtype=""), "dtype is empty"),
    ],
)
def test_a_bad_row_is_named_and_left_out(tmp_path, bad, reason):
    records = read_records(folder(tmp_path, row(), bad, row(m=128)))
    assert len(records.ops["gemm"]) == 2
    (message,) = messages(records)
    assert reason in message
    assert "gemm.csv:3:" in message


def test_missing_column_leaves_the_file_out_but_not_the_others(tmp_path):
    folder(tmp_path, row())
    folder(tmp_path, "gemm,bf16,1,2,3", name="short.csv", head="op,dtype,m,n,k")
    records = read_records([tmp_path])
    assert len(records.ops["gemm"]) == 1
    assert "short.csv: column latency_us is missing" in messages(records)[0]


def test_unknown_operator_is_said_once(tmp_path):
    folder(tmp_path, row(), row(m=1).replace("gemm", "fft", 1), row(m=2).replace("gemm", "fft", 1))
    records = read_records([tmp_path])
    assert len(messages(records)) == 1
    assert '"fft" is unknown' in messages(records)[0]


def test_duplicates_use_their_median_and_are_said(tmp_path):
    records = read_records(folder(tmp_path, row(latency="1"), row(latency="2"), row(latency="9")))
    assert records.ops["gemm"]["latency_s"].tolist() == pytest.approx([2e-6])
    assert "same shape as line 2 (3 rows)" in messages(records)[0]


def test_repeats_far_apart_are_said_and_their_files_told_apart(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    folder(tmp_path / "a", row(latency="100"))
    folder(tmp_path / "b", row(latency="150"))
    records = read_records([tmp_path / "a", tmp_path / "b"])
    assert "though they lie 1.5 times apart" in messages(records)[0]
    assert records.where(records.ops["gemm"].origin[0]) == f"{tmp_path / 'a' / 'gemm.csv'}:2"


def test_other_kernels_of_a_shape_are_not_duplicates(tmp_path):
    records = read_records(folder(tmp_path, row(), row(kernel="cutlass")))
    assert len(records.ops["gemm"]) == 2
    assert records.problems == []


def test_empty_folder_missing_folder_and_no_good_row_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no CSV file"):
        read_records([tmp_path])
    with pytest.raises(BadInput, match="does not exist"):
        read_records([tmp_path / "nothing"])
    with pytest.raises(BadInput, match="nothing usable"):
        read_records(folder(tmp_path, row(latency="-1")))


def test_sources_merge(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    folder(first, row())
    folder(second, row(m=128), row(m=256))
    records = read_records([first, second])
    assert len(records.ops["gemm"]) == 3
    assert [f.rows for f in records.files] == [1, 2]


def test_exclude_drops_exactly_the_named_rows(tmp_path):
    records = read_records(folder(tmp_path, row(), row(m=128), row(m=256)))
    assert exclude(records, ["gemm:m=128,256"]) == 2
    assert records.ops["gemm"]["m"].tolist() == [4096]
    for rule in ("gemm:rows=1", "fft:m=1", "gemm", "gemm:m="):
        with pytest.raises(BadInput, match="--exclude"):
            exclude(records, [rule])


def test_exclude_takes_spaces_and_any_case_and_refuses_what_no_row_has(tmp_path):
    records = read_records(folder(tmp_path, row(), row(m=128), row(m=256)))
    with pytest.raises(BadInput, match="no row holds 512; there are: 128, 256, 4096"):
        exclude(records, ["gemm:m=128,512"])
    assert len(records.ops["gemm"]) == 3
    assert exclude(records, ["gemm:m=128, 256"]) == 2
    assert exclude(records, ["gemm:dtype=BF16"]) == 1


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_separators_quotes_and_headers_with_spaces_are_read(tmp_path, delimiter):
    head = HEAD.upper().replace(",", f" {delimiter} ")
    line = '"' + row().replace(",", f'"{delimiter}"') + '"'
    (tmp_path / "gemm.CSV").write_bytes(b"\xef\xbb\xbf" + f"{head}\r\n{line}\r\n".encode())
    rows = read_records([tmp_path]).ops["gemm"]
    assert rows["latency_s"].tolist() == pytest.approx([2.5e-4])


@pytest.mark.parametrize(
    ("given", "meant"),
    [("torch.bfloat16", "bf16"), ("BF16", "bf16"), ("half", "fp16"), ("float8_e4m3fn", "fp8")],
)
def test_names_of_dtypes_of_other_tools_are_known(tmp_path, given, meant):
    records = read_records(folder(tmp_path, row(dtype=given)))
    assert records.ops["gemm"].text("dtype").tolist() == [meant]


def test_a_quote_that_is_not_closed_names_the_lines_it_swallowed(tmp_path):
    rows = [row(m=64 * i) for i in range(1, 30)]
    rows[3] = rows[3].replace("bf16", '"bf16')
    records = read_records(folder(tmp_path, *rows))
    assert len(records.ops["gemm"]) == 3
    assert "26 lines are one row" in messages(records)[0]


def test_a_field_longer_than_csv_allows_ends_the_file_with_a_warning(tmp_path):
    records = read_records(folder(tmp_path, row(), row(m=128) + "x" * 200_000, row(m=256)))
    assert len(records.ops["gemm"]) == 1
    assert "gemm.csv:3: no CSV from here on: field larger" in messages(records)[0]


def test_a_folder_without_tables_says_what_it_holds(tmp_path):
    (tmp_path / "gemm.csv.gz").write_bytes(b"")
    with pytest.raises(BadInput, match=r"it holds gemm\.csv\.gz"):
        read_records([tmp_path])


def test_a_shape_of_two_devices_is_no_duplicate_and_is_warned_about(tmp_path):
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    records = read_records(folder(tmp_path, *(row().replace("dev,", f"{n},") for n in names)))
    assert len(records.ops["gemm"]) == 2
    (found,) = other_devices(records, load_device("h100-sxm"))
    assert "NVIDIA A100-SXM4-80GB (1), NVIDIA H100 80GB HBM3 (1)" in found.message
    assert exclude(records, [f"gemm:device={names[1]}"]) == 1
    assert other_devices(records, load_device("h100-sxm")) == []
    (found,) = other_devices(records, load_device("a100-sxm-80g"))
    assert "a100-sxm-80g are of NVIDIA H100" in found.message


SIZES = (2**25, 2**27, 2**29)


def groups(tmp_path, link_share):
    """Rows of all_gather whose groups get the given shares of a 32 GB/s link."""
    rows = [
        f"collective,all_gather,nccl,{n},{size},{size * (n - 1) / n / (32e3 * share):.3f},dev,soft"
        for n, share in link_share.items()
        for size in SIZES
    ]
    head = "op,collective,library,num_ranks,message_bytes,latency_us,device,software"
    return read_records(folder(tmp_path, *rows, name="collective.csv", head=head))


@pytest.mark.parametrize(
    ("link_share", "named"),
    [
        ({2: 0.6, 4: 0.15, 8: 0.06}, "num_ranks=4,8"),
        ({2: 0.6, 4: 0.55, 8: 0.1}, "num_ranks=8"),
        ({2: 0.6, 4: 0.55, 8: 0.45}, ""),
        ({2: 0.2, 4: 0.6, 8: 0.9}, ""),
    ],
)
def test_groups_that_fall_behind_smaller_ones_are_named(tmp_path, link_share, named):
    """Slower with ranks is broken peers; slower of two ranks is a mesh."""
    found = slow_groups(groups(tmp_path, link_share), Rates.of(load_device("l40s")))
    assert len(found) == bool(named)
    for problem in found:
        assert problem.message.endswith(f"--exclude collective:{named}")
