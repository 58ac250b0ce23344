from django.urls import path

from portal.accounts import views

app_name = "accounts"
urlpatterns = [
    path("", views.settings, name="settings"),
    path("ssh-keys", views.add_ssh_key, name="add_ssh_key"),
    path("ssh-keys/<int:key_id>/remove", views.remove_ssh_key, name="remove_ssh_key"),
    path("tokens", views.issue_token, name="issue_token"),
    path("tokens/<int:token_id>/revoke", views.revoke_token, name="revoke_token"),
]
