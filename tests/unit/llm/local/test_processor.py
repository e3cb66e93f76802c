"""What the processor can do is read from what the system says of it."""

import pytest

from looopy.errors import ConfigurationError
from looopy.llm.local.processor import check_processor, physical_cores

OLD = "processor\t: 0\nflags\t\t: fpu sse sse2 avx f16c fma bmi2\n"
NEW = "processor\t: 0\nflags\t\t: fpu sse sse2 avx avx2 f16c fma bmi2\n"


def test_a_processor_without_avx2_is_refused_by_that_name():
    """Otherwise the child would die of an illegal instruction, after the download."""
    with pytest.raises(ConfigurationError, match="lacks AVX2"):
        check_processor(OLD)


@pytest.mark.parametrize("cpuinfo", [NEW, "", "Features\t: asimd fp\n"])
def test_a_processor_that_has_it_or_does_not_say_passes(cpuinfo):
    """Where nothing is known, nothing is refused."""
    check_processor(cpuinfo)


def test_two_threads_of_a_core_count_once():
    """Two threads that share one core's arithmetic units only wait for each other."""
    one = "physical id\t: 0\ncore id\t: 0\n\n"
    assert physical_cores(one + one) == 1


def test_an_unknown_number_of_cores_is_at_least_one():
    """Systems that do not list cores count processors."""
    assert physical_cores("") >= 1
