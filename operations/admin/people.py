"""People and groups in the look of the rest.

Tokens of the API have no page: a token is its table's primary key, so every list and address would show it.
`manage.py drf_create_token NAME` makes one, with -r another; who is not active has none.
"""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from rest_framework.authtoken.models import TokenProxy

from config.admin import AdminPasswordChangeForm, BaseAdmin, UserChangeForm, UserCreationForm

for model in (User, Group, TokenProxy):
    if admin.site.is_registered(model):
        admin.site.unregister(model)


@admin.register(User)
class PersonAdmin(UserAdmin, BaseAdmin):
    """Django's own, with forms that fit the look."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_fullwidth = True


@admin.register(Group)
class PeopleAdmin(GroupAdmin, BaseAdmin):
    """Django's own."""
