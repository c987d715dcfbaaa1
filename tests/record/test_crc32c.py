import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.batches import needs_c, raw_kernels


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # this and the next three are from RFC 3720
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_checksums(kernel, data, crc):
    assert kernel.crc32c(data) == crc


def test_a_checksum_goes_on_where_another_ended(kernel):
    data = bytes(range(256)) * 20

    for cut in (0, 1, 7, 8, 383, 384, 1535, 1536, 1919, 1920, 5119, 5120):
        assert kernel.crc32c(data[cut:], kernel.crc32c(data[:cut])) == kernel.crc32c(data)


def test_any_contiguous_buffer_is_taken(kernel):
    assert kernel.crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283


def test_a_buffer_with_holes_is_refused(kernel):
    with pytest.raises(BufferError):
        kernel.crc32c(memoryview(b"123456789")[::2])


def test_text_is_refused(kernel):
    with pytest.raises(TypeError):
        kernel.crc32c("123456789")


@pytest.mark.parametrize(("crc", "error"), [(-1, ValueError), (2**32, OverflowError), (2**64, OverflowError)])
def test_a_start_that_is_no_crc_is_refused(kernel, crc, error):
    with pytest.raises(error):
        kernel.crc32c(b"", crc)


@needs_c
@given(
    st.binary(max_size=64) | st.integers(0, 6000).map(lambda size: bytes(i * 31 & 0xFF for i in range(size))),
    st.integers(0, 2**32 - 1),
    st.integers(0, 7),
)
def test_hardware_table_and_oracle_agree_at_any_length_and_alignment(data, crc, skipped):
    c, python = raw_kernels()
    data = memoryview(data)[skipped:]

    assert c.crc32c(data, crc) == c.crc32c_table(data, crc) == python.crc32c(data, crc)


@needs_c
def test_the_kernel_says_whether_it_uses_the_hardware():
    c, python = raw_kernels()

    assert isinstance(c.hardware_crc(), bool)
    assert python.hardware_crc() is False
