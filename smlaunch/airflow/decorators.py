"""``@task.smlaunch``: a task whose function returns the job, as a mapping, a Job, or the path of a job
file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from smlaunch.airflow.operators import SmlaunchOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator


class SmlaunchDecoratedOperator(DecoratedOperator, SmlaunchOperator):
    """The operator of a function with ``@task.smlaunch``."""

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *SmlaunchOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **SmlaunchOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.smlaunch"
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            job=SET_DURING_EXECUTION,
            **kwargs,
        )

    def execute(self, context: Context) -> dict[str, Any]:
        context_merge(context, self.op_kwargs)
        arguments = determine_kwargs(self.python_callable, self.op_args, context)
        self.job = self.python_callable(*self.op_args, **arguments)
        self.render_template_fields(context)
        return SmlaunchOperator.execute(self, context)


def smlaunch_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Return the ``@task.smlaunch`` decorator. ``kwargs`` are those of SmlaunchOperator, without ``job``."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=SmlaunchDecoratedOperator, **kwargs
    )
