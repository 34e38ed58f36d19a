"""Read measurement files: the kind is recognised by the columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from replay import documents
from replay.calibration.kinds.attention import CONTEXT, GENERATION
from replay.calibration.kinds.collectives import COLLECTIVES_KIND, NETWORK_KIND
from replay.calibration.kinds.convolution import CONVOLUTION_KIND
from replay.calibration.kinds.experts import EXPERTS_KIND
from replay.calibration.kinds.gemm import GEMM_KIND
from replay.calibration.kinds.layers import LAYERS_KIND
from replay.calibration.kinds.model_forward import MODEL_FORWARD_KIND
from replay.calibration.kinds.model_layer import MODEL_LAYER_KIND
from replay.calibration.kinds.serving import SERVING_KIND
from replay.calibration.kinds.streams import OPERATORS_KIND, QUANTIZE_KIND, VECTOR_KIND
from replay.calibration.kinds.vector_gemm import DEEPBENCH_GEMM_KIND, VECTOR_GEMM_KIND
from replay.calibration.measured import MeasuredSet, MeasurementKind
from replay.calibration.whole import MeasuredWhole
from replay.errors import SpecError

KINDS: tuple[MeasurementKind, ...] = (
    CONTEXT,
    GENERATION,
    EXPERTS_KIND,
    QUANTIZE_KIND,
    LAYERS_KIND,
    OPERATORS_KIND,
    VECTOR_KIND,
    COLLECTIVES_KIND,
    NETWORK_KIND,
    VECTOR_GEMM_KIND,
    DEEPBENCH_GEMM_KIND,
    CONVOLUTION_KIND,
    MODEL_LAYER_KIND,
    MODEL_FORWARD_KIND,
    SERVING_KIND,
    GEMM_KIND,  # knows the fewest columns
)
"""Every kind of measurement file that is read; a file is of the first that recognises its columns."""
CELLS = pc.ConvertOptions(null_values=["", "NA", "N/A", "NULL", "null"], strings_can_be_null=True, quoted_strings_can_be_null=False)
"""Which cells are empty; one that says `nan` is not: something was measured and came out as no number."""
WHAT = "a file of measured kernels, layers, passes or servers (CSV)"


def read_measurements(path: Path) -> tuple[tuple[str, MeasuredSet | MeasuredWhole], ...]:
    """Return the (kind, set) pairs of a file.

    Raises:
        SpecError: it cannot be read, is of no known kind, or holds a value that cannot be.
    """
    return parse_measurements(documents.read_bytes(path, WHAT), path)


def parse_measurements(data: bytes, path: Path) -> tuple[tuple[str, MeasuredSet | MeasuredWhole], ...]:
    """Return the (kind, set) pairs of a file's bytes; errors as `read_measurements`."""
    try:
        data.decode()
        # One thread: reading ahead in another one can outlive an error, and then abort the process as it ends.
        table = pc.read_csv(
            pa.BufferReader(data), read_options=pc.ReadOptions(use_threads=False, block_size=max(len(data), 1)), convert_options=CELLS
        )
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"byte {error.start} is not UTF-8", WHAT, "save it as UTF-8") from error
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise SpecError(str(path), f"it is no table ({reason})", WHAT, "mend or export it again") from error
    columns = frozenset(table.column_names)
    twice = sorted(name for name in columns if table.column_names.count(name) > 1)
    if twice:
        raise SpecError(str(path), f"the column {twice[0]!r} stands there twice", "every column once", "rename or drop one")
    kind = next((kind for kind in KINDS if kind.recognises(columns)), None)
    if kind is None:
        known = ", ".join(kind.name for kind in KINDS)
        got = f"columns {', '.join(sorted(columns))[:120]} of no known kind"
        raise SpecError(str(path), got, f"the columns of one of {known}", "name the columns as the measurement set documents them")
    return tuple((kind.name, measured) for measured in kind.read(table, path.name))
