from django.urls import path

from portal.instances import views

app_name = "instances"
urlpatterns = [
    path("", views.instance_list, name="list"),
    path("launch", views.launch, name="launch"),
    path("<uuid:instance_id>", views.detail, name="detail"),
    path("<uuid:instance_id>/state", views.state, name="state"),
    path("<uuid:instance_id>/cost", views.cost, name="cost"),
    path("<uuid:instance_id>/stop", views.stop, name="stop"),
    path("<uuid:instance_id>/start", views.start, name="start"),
    path("<uuid:instance_id>/terminate", views.terminate, name="terminate"),
]
