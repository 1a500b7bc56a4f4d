"""Which column of an Iceberg table holds which column of the files of an export.

The files have no field ids. A table identifies its columns by ids, so its user can rename, move, drop and
add columns. The property `gossipq.columns` says which id each column of the files has, as a name mapping of
Iceberg. A column is found by that id, even if its name has changed. A column that was dropped keeps its
entry, and is not added again.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gossipq.errors import ExportError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.name_mapping import MappedField, NameMapping

COLUMNS = "gossipq.columns"  #: property of a table
NAME_MAPPING = "schema.name-mapping.default"  #: property that readers follow
#: ids from here on are in no table: those of new columns within a column that was dropped
NOWHERE = 1 << 30


def mapping_of(table: "Table") -> "NameMapping":
    """Return the ids of the columns that the table was fed so far."""
    from pyiceberg.table.name_mapping import parse_mapping_from_json

    for name in (COLUMNS, NAME_MAPPING):  # an older version wrote the second alone
        if name in table.properties:
            return parse_mapping_from_json(table.properties[name])
    return table.schema().name_mapping


def evolve(transaction: "Transaction", name: str, schema: Any, known: "NameMapping") -> "NameMapping":
    """Add the columns of `schema` (of pyarrow) that are new; return the mapping with their ids.

    Raises ExportError if the table has a column of somebody else with the name of a new one.
    """
    from pyiceberg.table.name_mapping import NameMapping

    added = _new_fields(list(schema), known.root, transaction.table_metadata.schema().as_struct(), name, ())
    if added:
        import pyarrow as pa

        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(added))
    nowhere = _ids(known.root)
    struct = transaction.table_metadata.schema().as_struct()
    mapping = NameMapping(_mapped(list(schema), known.root, struct, nowhere))
    told = mapping.model_dump_json()
    properties = transaction.table_metadata.properties
    if (properties.get(COLUMNS), properties.get(NAME_MAPPING)) != (told, told):
        transaction.set_properties({COLUMNS: told, NAME_MAPPING: told})
    return mapping


def data_file(transaction: "Transaction", io: Any, path: str, mapping: "NameMapping") -> "DataFile":
    """Describe a Parquet file for a manifest, with counts and bounds of the columns in the table."""
    from pyarrow import parquet
    from pyiceberg.io import pyarrow as arrow
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metadata, file = transaction.table_metadata, io.new_input(path)
    with file.open() as stream:
        footer = parquet.read_metadata(stream)
    schema = arrow.pyarrow_to_schema(footer.schema.to_arrow_schema(), name_mapping=mapping)
    statistics = arrow.data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=arrow.compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=arrow.parquet_path_to_id_mapping(schema),
    )
    counts = (
        statistics.column_sizes,
        statistics.value_counts,
        statistics.null_value_counts,
        statistics.nan_value_counts,
        statistics.column_aggregates,
    )
    existing = metadata.schema().field_ids
    for each in counts:
        for field_id in each.keys() - existing:
            del each[field_id]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), metadata.schema()),
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _inner(kind: Any) -> list[Any]:
    """Return the fields within an Arrow type, under the names that Iceberg gives them."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return [kind.value_field.with_name("element")] if pa.types.is_list(kind) else []


def _fields(kind: Any) -> tuple[Any, ...]:
    """Return the fields within an Iceberg type; () without any, or if the column was dropped."""
    return getattr(kind, "fields", ())


def _find(mapped: "Iterable[MappedField]", name: str) -> "MappedField | None":
    return next((each for each in mapped if name in each.names), None)


def _with_id(kind: Any, field_id: int | None) -> Any:
    return next((each for each in _fields(kind) if each.field_id == field_id), None)


def _named(kind: Any, name: str) -> Any:
    return next((each for each in _fields(kind) if each.name == name), None)


def _new_fields(
    fields: list[Any], mapped: "list[MappedField]", kind: Any, table: str, path: tuple[str, ...]
) -> list[Any]:
    """Return the Arrow fields that have no id yet, each within its parents, under the names of the table."""
    found = []
    for field in fields:
        known = _find(mapped, field.name)
        if known is None:
            if _named(kind, field.name) is not None:
                raise ExportError(
                    f"{table} has a column {'.'.join((*path, field.name))} of somebody else",
                    hint="rename that column in the table: the next commit adds one of this name",
                )
            found.append(field)
            continue
        column = _with_id(kind, known.field_id)
        if column is None:  # dropped, with all that is in it
            continue
        inner = _new_fields(_inner(field.type), known.fields, column.field_type, table, (*path, column.name))
        if inner:
            found.append(_parent(field, column, inner))
    return found


def _parent(field: Any, column: Any, inner: list[Any]) -> Any:
    """Return an Arrow field for a column of the table, with nothing but `inner` in it."""
    import pyarrow as pa

    kind: Any
    if pa.types.is_struct(field.type):
        kind = pa.struct(inner)
    elif pa.types.is_map(field.type):
        kind = pa.map_(field.type.key_field, inner[-1])
    else:
        kind = pa.list_(inner[0])
    return pa.field(column.name, kind, not column.required)


def _ids(mapped: "Iterable[MappedField]") -> Iterator[int]:
    """Yield ids that are in no table, above those of the mapping."""

    def used(fields: "Iterable[MappedField]") -> Iterator[int]:
        for each in fields:
            yield each.field_id or 0
            yield from used(each.fields)

    free = max(NOWHERE, *used(mapped), 0)
    while True:
        free += 1
        yield free


def _mapped(
    fields: list[Any], known: "list[MappedField]", kind: Any, nowhere: Iterator[int]
) -> "list[MappedField]":
    """Return the mapping of `fields`, and of those that only older files have."""
    from pyiceberg.table.name_mapping import MappedField

    made = []
    for field in fields:
        before = _find(known, field.name)
        column = _named(kind, field.name) if before is None else _with_id(kind, before.field_id)
        if before is not None:
            field_id = before.field_id
        else:
            field_id = next(nowhere) if column is None else column.field_id
        inner = _mapped(
            _inner(field.type),
            [] if before is None else before.fields,
            None if column is None else column.field_type,
            nowhere,
        )
        made.append(
            MappedField.model_validate({"field-id": field_id, "names": [field.name], "fields": inner})
        )
    names = {field.name for field in fields}
    return made + [each for each in known if not names.intersection(each.names)]
