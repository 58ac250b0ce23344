"""A queryset compiled once finds what it would find compiled anew."""

import pytest
from django.contrib.postgres.expressions import ArraySubquery
from django.db import connection, transaction
from django.db.models import Count, OuterRef
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from database.compiled import Compiled, param
from scheduler.models import Gpu, Node
from tests.factories import H100, make_image, make_node

OF_NODE = Compiled(
    lambda: Gpu.objects.filter(node=param("node"), model=H100).order_by("uuid").values_list("uuid")
)
OF_NODES = Compiled(
    lambda: (
        Gpu.objects.filter(node__any=param("nodes"))
        .values_list("node")
        .annotate(Count("pk"))
        .order_by("node")
    )
)
LOCKED = Compiled(
    lambda: Node.objects.filter(pk__any=param("pks")).select_for_update().values_list("name")
)
NAMED = Compiled(lambda: Node.objects.filter(name=param("name")).values_list())
WITH_GPUS = Compiled(
    lambda: Node.objects.filter(pk=param("pk")).values_list(
        "name",
        ArraySubquery(Gpu.objects.filter(node=OuterRef("pk")).order_by("uuid").values("uuid")),
    )
)


@pytest.mark.django_db
class TestCompiled:
    def test_runs_with_the_values_of_each_call(self) -> None:
        one, two = make_node(gpus=2), make_node(gpus={H100: 1, "other": 1})

        for node in (one, two, one):
            mine = node.gpus.filter(model=H100).order_by("uuid").values_list("uuid")
            assert OF_NODE(node=node.pk) == list(mine)

    def test_takes_a_list_of_any_length_as_one_parameter(self) -> None:
        nodes = [make_node(gpus=count) for count in (1, 2, 3)]
        pks = [node.pk for node in nodes]

        assert OF_NODES(nodes=[]) == []
        assert OF_NODES(nodes=pks[:1]) == [(pks[0], 1)]
        assert OF_NODES(nodes=pks) == list(zip(pks, (1, 2, 3), strict=True))

    def test_gives_models_that_are_as_read_from_the_database(self) -> None:
        node = make_node()

        [found] = NAMED.models(name=node.name)

        assert found == node
        assert found.memory_mib == node.memory_mib
        assert not found._state.adding
        assert not found.get_deferred_fields()

    def test_converts_what_the_queryset_would_convert(self) -> None:
        node = make_node(gpus=2)
        image = make_image(command=["sleep", "1"])
        by_slug = Compiled(
            lambda: type(image).objects.filter(slug=param("slug")).values_list("command")
        )

        assert by_slug(slug=image.slug) == [(["sleep", "1"],)]
        assert WITH_GPUS(pk=node.pk) == [(node.name, sorted(g.uuid for g in node.gpus.all()))]

    def test_builds_its_queryset_once(self) -> None:
        built = []

        def build() -> object:
            built.append(1)
            return Node.objects.filter(pk=param("pk")).values_list("name")

        once = Compiled(build)  # type: ignore[arg-type]
        for _ in range(3):
            with CaptureQueriesContext(connection) as statements:
                once(pk=1)
            assert len(statements) == 1

        assert len(built) == 1

    def test_needs_every_value(self) -> None:
        with pytest.raises(KeyError):
            OF_NODE()


@pytest.mark.django_db(transaction=True)
def test_rows_are_locked_in_a_transaction_only() -> None:
    pk = make_node().pk

    with transaction.atomic():
        assert len(LOCKED(pks=[pk])) == 1
    with pytest.raises(TransactionManagementError):
        LOCKED(pks=[pk])
