from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"

    def ready(self) -> None:
        from scheduler import checks  # noqa: F401, PLC0415 - registers itself
