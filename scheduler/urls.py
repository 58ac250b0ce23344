from django.urls import path

from scheduler import views

app_name = "scheduler"
urlpatterns = [
    path("", views.fleet, name="fleet"),
    path("join-tokens", views.join_token, name="join-token"),
    path("nodes/<int:node_id>/cordon", views.cordon, name="cordon"),
    path("nodes/<int:node_id>/uncordon", views.uncordon, name="uncordon"),
    path("placement/<uuid:instance_id>", views.placement, name="placement"),
]
