"""Routes of the nodes' door."""

from django.urls import path

from scheduler import agent_api

urlpatterns = [
    path("enroll", agent_api.enroll),
    path("sync", agent_api.sync),
]
